/* Copies strings: 100 times by strcpy, 200 by stpcpy, 300 by strncpy, 400 by strdup, and 50 by each checked form. The
 * string has 2999 characters and its zero byte; strncpy writes 5000 bytes. Prints "ok". */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH = 2999, ROOM = 5000 };

char *__strcpy_chk(char *to, const char *from, size_t room);
char *__stpcpy_chk(char *to, const char *from, size_t room);
char *__strncpy_chk(char *to, const char *from, size_t len, size_t room);

static char from[LENGTH + 1], to[ROOM];

int main(void)
{
    for (int at = 0; at < LENGTH; at++) from[at] = (char)('a' + at % 26);
    for (int call = 0; call < 100; call++)
        if (strcpy(to, from) != to || strcmp(to, from) != 0) return 1;
    for (int call = 0; call < 200; call++)
        if (stpcpy(to, from) != to + LENGTH) return 2;
    for (int call = 0; call < 300; call++) {
        to[ROOM - 1] = 'x';
        if (strncpy(to, from, ROOM) != to || strcmp(to, from) != 0 || to[ROOM - 1] != 0) return 3;
    }
    for (int call = 0; call < 400; call++) {
        char *copy = strdup(from);
        if (copy == NULL || strcmp(copy, from) != 0) return 4;
        free(copy);
    }
    for (int call = 0; call < 50; call++) {
        if (__strcpy_chk(to, from, ROOM) != to) return 5;
        if (__stpcpy_chk(to, from, ROOM) != to + LENGTH) return 6;
        if (__strncpy_chk(to, from, ROOM, ROOM) != to) return 7;
    }
    return write(1, "ok\n", 3) == 3 ? 0 : 1;
}
