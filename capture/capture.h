/* The capture stage: starts the live ranks of a node and seals what they recorded. */
#ifndef CRYSTAL_CAPTURE_H
#define CRYSTAL_CAPTURE_H

#include "runtime/error.h"

#endif
