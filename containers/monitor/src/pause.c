#include "monitor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIRM_FD 3

/*
 * pid 1 of a pod's shared process namespace: reaps what its containers leave
 * behind and holds the namespace until it is told to go (SIGTERM, SIGINT).
 */
int pause_main(void)
{
	sigset_t all;
	int sig;
	char known;

	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
		return 1;
	/* The runtime says a byte once it has us on disk. A runtime that is killed before that
	 * leaves the end of the pipe instead, and nobody would ever find us. */
	if (read(CONFIRM_FD, &known, 1) != 1)
		return 0;
	close(CONFIRM_FD);
	for (;;) {
		if (sigwait(&all, &sig))
			continue;
		if (sig == SIGTERM || sig == SIGINT)
			return 0;
		while (sig == SIGCHLD && waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
