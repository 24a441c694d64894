/* The measured loops over an MPI: over_mpi SOCKET CPU0 CPU1, by mpirun with two ranks. */
#define _GNU_SOURCE
#include "control.h"
#include <mpi.h>

static MPI_Request requests[2 * WINDOW];
static int started;

static void post_answer(unsigned char *bytes, size_t len)
{
	/* MPI_Recv receives in `await_answer`, as the ping-pongs of MPI do. */
	(void)bytes, (void)len;
}

static void send_one(unsigned char *bytes, size_t len)
{
	MPI_Send(bytes, (int)len, MPI_BYTE, !rank, 1, MPI_COMM_WORLD);
}

static void await_answer(unsigned char *bytes, size_t len)
{
	MPI_Recv(bytes, (int)len, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void start_send(size_t slot, unsigned char *bytes, size_t len)
{
	(void)slot;
	MPI_Isend(bytes, (int)len, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &requests[started++]);
}

static void start_receive(size_t slot, unsigned char *bytes, size_t len)
{
	(void)slot;
	MPI_Irecv(bytes, (int)len, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &requests[started++]);
}

static void finish(void)
{
	MPI_Waitall(started, requests, MPI_STATUSES_IGNORE);
	started = 0;
}

#include "loops.h"

/* Sums of floats. Each rank adds 1 to a number of each cache line before each sum, if asked to. */
static struct found all_reduce(size_t len, int rewritten, uint64_t sums)
{
	float *mine = (float *)outgoing, *sum = (float *)incoming;
	int floats = (int)(len / sizeof(float));
	struct times begin = {0};
	for (int i = 0; i < floats; i++)
		mine[i] = (float)(i % 1000 + rank);
	for (uint64_t number = 0; number < sums + WARM; number++) {
		if (number == WARM)
			begin = times_now();
		for (int i = 0; rewritten && i < floats; i += LINE / (int)sizeof(float))
			*(volatile float *)&mine[i] += 1;
		MPI_Allreduce(mine, sum, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	}
	struct times took = since(begin);
	float added = rewritten ? 2 * (float)(sums + WARM) : 0;
	for (int i = 0; i < floats; i++)
		if (sum[i] != (float)(2 * (i % 1000) + 1) + (i % (LINE / (int)sizeof(float)) ? 0 : added))
			fail("wrong sum at %d of %d", i, floats);
	return (struct found){(double)took.wall / (double)sums, took};
}

static int extra_task(const char *task, size_t len, int rewritten, size_t window, uint64_t count, struct found *found)
{
	(void)window;
	if (strcmp(task, "allreduce") != 0)
		return 0;
	*found = all_reduce(len, rewritten, count);
	return 1;
}

/* The first messages open the connections. Both ranks wait until theirs has arrived: an MPI may still hold a message of
 * a rank that waits for the bench. */
static void meet(void)
{
	MPI_Request answer;
	MPI_Irecv(incoming, 8, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &answer);
	MPI_Ssend(outgoing, 8, MPI_BYTE, !rank, 1, MPI_COMM_WORLD);
	MPI_Wait(&answer, MPI_STATUS_IGNORE);
}

int main(int count, char **arguments)
{
	char name[MPI_MAX_LIBRARY_VERSION_STRING], line[64];
	int ranks, len;
	alarm(LONGEST);
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (count != 4 || ranks != 2)
		fail("usage: mpirun -np 2 over_mpi SOCKET CPU0 CPU1");
	connect_to_bench(arguments[1]);
	MPI_Get_library_version(name, &len);
	name[strcspn(name, "\n,")] = 0;
	for (char *tab; (tab = strchr(name, '\t'));)
		*tab = ' ';
	dprintf(fileno(bench), "hello %d - %s\n", rank, name);
	if (!next_line(line, sizeof(line)))
		fail("the bench has ended");
	allocate(0);
	pin(atoi(arguments[2 + rank]));
	meet();
	alarm(0);
	dprintf(fileno(bench), "ready\n");
	obey();
	alarm(LONGEST);
	MPI_Finalize();
	return 0;
}
