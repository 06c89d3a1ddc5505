/* Where in a program of another language its calls come from: what an interpreter's
 * binding may tell the recorder, for diagnoses. An optional part of libcrystal-nccl.so,
 * found with dlsym; other libraries lack it. C ABI.
 */
#ifndef CRYSTAL_SITE_H
#define CRYSTAL_SITE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The calling thread's next calls come from there: "train.py:120 in step". text keeps
 * its address and content to the end of the process; NULL: not known. Returns 1 where
 * that is of use (in capture), else 0: then it need not be called again. */
int crystal_call_site(const char *text);
typedef int (*crystal_call_site_fn)(const char *text);

#ifdef __cplusplus
}
#endif

#endif
