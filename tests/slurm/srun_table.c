/* Prints the plugin's table of srun's options, for options.t. */
#include "config.h"

#include "spank/srun_line.h"

int main(void)
{
    crystal_srun_line_print_table(1);
    return 0;
}
