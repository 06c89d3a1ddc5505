/* scrystal emulate: the emulate stage by hand. */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"

CRYSTAL_COMMAND(emulate)
{
    return stage_by_hand(STAGE_EMULATE, argc, argv);
}
