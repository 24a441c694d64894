/* Reads numbers from standard input, makes that many copies of 100,000 bytes for each, and answers "done N". It begins
 * with its process number. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static char from[100000], to[100000];

int main(void)
{
    int count;
    memset(from, 7, sizeof from);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    while (scanf("%d", &count) == 1) {
        for (int call = 0; call < count; call++) copy(to, from, sizeof to);
        printf("done %d\n", count);
        fflush(stdout);
    }
    return memcmp(to, from, sizeof to);
}
