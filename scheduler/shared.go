package scheduler

import "github.com/skiff-k8s/skiff/scheduler/framework"

// sharedPlugins are those that need the scheduler itself.
func (s *Scheduler) sharedPlugins() []framework.Plugin { return nil }
