/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Opens its argument as a program without a word about Dwell would, and prints what is known. */
#include <stdio.h>

#include <dwell.h>

int main(int argc, char **argv)
{
    dwell_file *file;
    dwell_info info = DWELL_INFO_INIT;
    char byte;
    if (argc != 2 || dwell_open(argv[1], NULL, &file) != 0 || dwell_file_info(file, &info) != 0) {
        fprintf(stderr, "%s\n", dwell_last_error());
        return 1;
    }
    if (dwell_read_at(file, &byte, 1, 0) != 1)
        return 1;
    printf("class %u\npolicy %s\nnote %s\n", info.device_class, info.policy, info.note != NULL ? info.note : "none");
    return dwell_close(file);
}
