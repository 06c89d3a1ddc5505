/* Frames to texts; see site.h. Texts are made once for each instruction that calls, and
 * code objects are kept alive, so that their addresses name them. All under the GIL. */
#include "site.h"

#include <Python.h>
#include <frameobject.h>

#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace crystal
{

/* Programs that make code while they run get no texts beyond so many. */
static constexpr size_t CODES_MAX = 16384;
static constexpr size_t TEXT_BYTES = 96;

struct Code {
    bool is_users;
    std::unordered_map<int, std::unique_ptr<std::string>> texts; /* by instruction */
};

static std::vector<std::string> ignored;
static std::unordered_map<PyCodeObject *, Code> codes;

void site_ignore(const char *path_prefix)
{
    ignored.emplace_back(path_prefix);
}

static bool is_users(PyCodeObject *code)
{
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (!file) {
        PyErr_Clear();
        return false;
    }
    for (const auto &prefix : ignored) {
        if (strncmp(file, prefix.c_str(), prefix.size()) == 0) {
            return false;
        }
    }
    return file[0] != '<';
}

static Code *code_of(PyCodeObject *code)
{
    auto found = codes.find(code);
    if (found != codes.end()) {
        return &found->second;
    }
    if (codes.size() >= CODES_MAX) {
        return nullptr;
    }
    Py_INCREF(code);
    return &codes.emplace(code, Code{is_users(code), {}}).first->second;
}

static std::string text_of(PyCodeObject *code, int line)
{
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    const char *name = PyUnicode_AsUTF8(code->co_name);
    if (!file || !name) {
        PyErr_Clear();
        return "?";
    }
    const char *base = strrchr(file, '/');
    std::string text = std::string(base ? base + 1 : file) + ":" +
                       std::to_string(line) + " in " + name;
    return text.size() < TEXT_BYTES ? text : text.substr(0, TEXT_BYTES - 3) + "...";
}

/* What tells the calls of one code object apart. */
static int instruction_of(PyFrameObject *frame)
{
#if PY_VERSION_HEX >= 0x030b0000
    return PyFrame_GetLasti(frame); /* costs less than the line */
#else
    return PyFrame_GetLineNumber(frame);
#endif
}

static const char *text_at(PyFrameObject *frame, PyCodeObject *code, Code &known)
{
    auto &text = known.texts[instruction_of(frame)];
    if (!text) {
        text =
            std::make_unique<std::string>(text_of(code, PyFrame_GetLineNumber(frame)));
    }
    return text->c_str();
}

const char *site_here()
{
    const char *text = nullptr;
    if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) {
        return nullptr;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame && !text) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        Code *known = code_of(code);
        if (known && known->is_users) {
            text = text_at(frame, code, *known);
        }
        PyFrameObject *back = text ? nullptr : PyFrame_GetBack(frame);
        Py_DECREF(code);
        Py_DECREF(frame);
        frame = back;
    }
    PyGILState_Release(state);
    return text;
}

} // namespace crystal
