/* Opens a library while it runs, and closes it again; copies before, meanwhile and afterwards: opens_library FILE
 * local|global. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static char from[1 << 20], to[1 << 20];

static void check(char byte)
{
    for (size_t at = 0; at < sizeof from; at++) from[at] = (char)(byte + at % 101);
    copy(to, from, sizeof to);
    for (size_t at = 0; at < sizeof from; at++)
        if (to[at] != from[at]) exit(1);
}

int main(int count, char **words)
{
    if (count != 3) return 2;
    check(1);
    void *library = dlopen(words[1], RTLD_NOW | (words[2][0] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    void *(*theirs)(void *, const void *, size_t) = (void *(*)(void *, const void *, size_t))dlsym(library, "memcpy");
    if (!theirs) return 4;
    memset(to, 0, sizeof to);
    theirs(to, from, sizeof to);
    if (memcmp(to, from, sizeof to) != 0) return 5;
    check(2);
    if (dlclose(library) != 0) return 6;
    check(3);
    puts("ok");
    return 0;
}
