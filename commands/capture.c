/* scrystal capture: the capture stage by hand. */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"

CRYSTAL_COMMAND(capture)
{
    return stage_by_hand(STAGE_CAPTURE, argc, argv);
}
