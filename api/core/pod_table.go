package core

import (
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/podfit"
)

func podColumns() []metav1.TableColumnDefinition {
	spec, status := v1.PodSpec{}.SwaggerDoc(), v1.PodStatus{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		api.NameColumn(),
		api.Column("Ready", "string", "The aggregate readiness state of this pod for accepting traffic.", 0),
		api.Column("Status", "string", "The aggregate status of the containers in this pod.", 0),
		api.Column("Restarts", "string", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.", 0),
		api.AgeColumn(),
		api.Column("IP", "string", status["podIP"], api.Wide),
		api.Column("Node", "string", spec["nodeName"], api.Wide),
		api.Column("Nominated Node", "string", status["nominatedNodeName"], api.Wide),
		api.Column("Readiness Gates", "string", spec["readinessGates"], api.Wide),
	}
}

func podRow(p *v1.Pod, now time.Time) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, api.Age(s.lastRestart, now))
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, api.Age(p.CreationTimestamp, now),
		orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), readinessGates(p),
	}
}

func readinessGates(p *v1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if hasCondition(p, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

func hasCondition(p *v1.Pod, kind v1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// summary condenses the containers' statuses into what one table row shows.
type summary struct {
	ready, total int
	reason       string
	restarts     int
	lastRestart  metav1.Time
}

func (s *summary) countRestarts(c *v1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

func summarize(p *v1.Pod) summary {
	s := summary{total: len(p.Spec.Containers), reason: string(p.Status.Phase)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Reason == v1.PodReasonSchedulingGated {
			s.reason = v1.PodReasonSchedulingGated
		}
	}
	if initializing, sidecars := s.addInitContainers(p); !initializing || hasCondition(p, v1.PodInitialized) {
		// Once initialized, only what still runs counts.
		s.restarts, s.lastRestart = sidecars.restarts, sidecars.lastRestart
		s.addContainers(p)
	}
	if p.DeletionTimestamp != nil {
		if p.Status.Reason == "NodeLost" {
			s.reason = "Unknown"
		} else if p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed {
			s.reason = "Terminating"
		}
	}
	return s
}

func (s *summary) addInitContainers(p *v1.Pod) (initializing bool, sidecars summary) {
	restartable := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; podfit.Restartable(c) {
			restartable[c.Name] = true
			s.total++
		}
	}
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.countRestarts(c)
		if restartable[c.Name] {
			sidecars.countRestarts(c)
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case restartable[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true, sidecars
	}
	return false, sidecars
}

func (s *summary) addContainers(p *v1.Pod) {
	running, failure := false, ""
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.countRestarts(c)
		switch ended, waiting := c.State.Terminated, c.State.Waiting; {
		case waiting != nil && waiting.Reason != "":
			s.reason = waiting.Reason
		case ended != nil:
			if s.reason = endReason(ended); ended.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason != "Completed" {
		return
	}
	switch {
	case running && hasCondition(p, v1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endReason(t *v1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
