/* scrystal plan: the plan stage by hand. */
#include "config.h"

#include "commands/commands.h"
#include "commands/stage.h"

CRYSTAL_COMMAND(plan)
{
    return stage_by_hand(STAGE_PLAN, argc, argv);
}
