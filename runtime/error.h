/* An error: a code and one sentence for the person who has to act on it.
 *
 * Fallible functions return 0 or a negative errno (or a pointer or NULL) and take a
 * `struct crystal_error *err` as their last parameter. It may be NULL. The sentence is
 * "place: cause; way out", lower case, no full stop; callers add their place in front.
 */
#ifndef CRYSTAL_ERROR_H
#define CRYSTAL_ERROR_H

#define CRYSTAL_ERROR_TEXT_BYTES 512

#ifdef __cplusplus
extern "C" {
#endif

struct crystal_error {
    int code;                            /* positive errno, 0 = no error */
    char text[CRYSTAL_ERROR_TEXT_BYTES]; /* zero-terminated, cut where too long */
};

/* Fills *err (if not NULL) and returns -code, so that a caller can return the call.
 * code is a positive errno. Thread-safe for distinct err. */
int crystal_error_set(struct crystal_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "format: " in front of the sentence. Does nothing without an error. */
void crystal_error_prefix(struct crystal_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The sentence, or "unknown error" where err is NULL or empty. Borrowed from err. */
const char *crystal_error_text(const struct crystal_error *err);

#ifdef __cplusplus
}
#endif

#endif
