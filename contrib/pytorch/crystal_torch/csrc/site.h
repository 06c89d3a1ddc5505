/* Where in the user's Python a call comes from, for diagnoses. */
#ifndef CRYSTAL_TORCH_SITE_H
#define CRYSTAL_TORCH_SITE_H

namespace crystal
{

/* Under the GIL, once: code in files that begin with it is not the user's. */
void site_ignore(const char *path_prefix);

/* "train.py:120 in step": the innermost frame of the calling thread that is the user's;
 * NULL where there is none (a thread of autograd's). The text is kept for ever. Takes
 * the GIL; costs about a microsecond. */
const char *site_here();

} // namespace crystal

#endif
