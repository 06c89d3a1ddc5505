/* The memory of a command that fills tables for a while and ends: predict, verify and
 * import. Much of their time went to the kernel, page by page.
 */
#ifndef CRYSTAL_HEAP_H
#define CRYSTAL_HEAP_H

/* Call it first of all. From now on all threads allocate from one heap, which keeps
 * what is freed and begins with 64 MiB for which large pages are asked; blocks from 32
 * MiB on are mapped apart, as ever. What the kernel or the C library refuses only costs
 * time. */
void crystal_heap_prepare(void);

#endif
