#include "monitor.h"

#include <signal.h>
#include <sys/wait.h>

/*
 * pid 1 of a pod's shared process namespace: reaps what its containers leave
 * behind and holds the namespace until it is told to go (SIGTERM, SIGINT).
 */
int pause_main(void)
{
	sigset_t all;
	int sig;

	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
		return 1;
	for (;;) {
		if (sigwait(&all, &sig))
			continue;
		if (sig == SIGTERM || sig == SIGINT)
			return 0;
		while (sig == SIGCHLD && waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
