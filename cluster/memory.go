package cluster

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/skiff-k8s/skiff/component"
)

// startupGarbage is how long after its start a process gives back what starting took:
// decoded certificates, schemas, first lists. Left alone, the collector would first look two
// minutes later, and an idle process keep the memory until then.
const startupGarbage = 5 * time.Second

// trim gives memory back once.
func trim() component.Member {
	return component.Member{Name: "memory", Background: true, Component: component.Func(func(ctx context.Context) error {
		select {
		case <-time.After(startupGarbage):
			debug.FreeOSMemory()
			<-ctx.Done()
		case <-ctx.Done():
		}
		return nil
	})}
}
