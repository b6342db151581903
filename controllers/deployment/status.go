package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Reasons of conditions.
const (
	reasonUpdated     = "ReplicaSetUpdated"
	reasonCreateError = "ReplicaSetCreateError"
	reasonCreated     = "NewReplicaSetCreated"
	reasonFound       = "FoundNewReplicaSet"
	reasonComplete    = "NewReplicaSetAvailable"
	reasonTimedOut    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
	reasonEnough      = "MinimumReplicasAvailable"
	reasonTooFew      = "MinimumReplicasUnavailable"
)

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

func condition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// setCondition replaces a condition unless status and reason are what they were; the
// transition time stays while the status does.
func setCondition(s *appsv1.DeploymentStatus, now time.Time, t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string) {
	old := condition(s, t)
	if old != nil && old.Status == status && old.Reason == reason {
		return
	}
	c := appsv1.DeploymentCondition{
		Type: t, Status: status, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if old != nil && old.Status == status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	dropCondition(s, t)
	s.Conditions = append(s.Conditions, c)
}

func dropCondition(s *appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == t })
}

// count sums up the sets' status; conditions are those of base.
func count(d *appsv1.Deployment, current *appsv1.ReplicaSet, all []*appsv1.ReplicaSet, base *appsv1.DeploymentStatus, now time.Time) appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{
		ObservedGeneration:  d.Generation,
		CollisionCount:      base.CollisionCount,
		Conditions:          slices.Clone(base.Conditions),
		TerminatingReplicas: ptr.To(int32(0)),
	}
	var wanted int32
	for _, rs := range all {
		wanted += size(rs)
		s.Replicas += rs.Status.Replicas
		s.ReadyReplicas += rs.Status.ReadyReplicas
		s.AvailableReplicas += rs.Status.AvailableReplicas
		switch {
		case rs.Status.TerminatingReplicas != nil:
			if s.TerminatingReplicas != nil {
				*s.TerminatingReplicas += *rs.Status.TerminatingReplicas
			}
		case rs.Status.ObservedGeneration != 0: // its controller does not count them
			s.TerminatingReplicas = nil
		}
	}
	if current != nil {
		s.UpdatedReplicas = current.Status.Replicas
	}
	s.UnavailableReplicas = max(0, wanted-s.AvailableReplicas)
	if s.AvailableReplicas >= replicas(d)-maxUnavailable(d) {
		setCondition(&s, now, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonEnough, "Deployment has minimum availability.")
	} else {
		setCondition(&s, now, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonTooFew, "Deployment does not have minimum availability.")
	}
	return s
}

func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	return s.UpdatedReplicas == replicas(d) && s.Replicas == replicas(d) &&
		s.AvailableReplicas == replicas(d) && s.ObservedGeneration >= d.Generation
}

// progress updates the Progressing condition of s, where d.Status is what was known
// before, and returns when to look again for the deadline (0: never).
func progress(d *appsv1.Deployment, current *appsv1.ReplicaSet, s *appsv1.DeploymentStatus, now time.Time) time.Duration {
	if !hasDeadline(d) {
		dropCondition(s, appsv1.DeploymentProgressing)
		return 0
	}
	subject := fmt.Sprintf("Deployment %q", d.Name)
	if current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", current.Name)
	}
	before := condition(s, appsv1.DeploymentProgressing)
	if before != nil && before.Reason == reasonComplete && s.Replicas == s.UpdatedReplicas {
		return 0 // nothing rolls out; pods may come and go
	}
	old := &d.Status
	switch {
	case complete(d, s):
		setCondition(s, now, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonComplete, subject+" has successfully progressed.")
	case s.UpdatedReplicas > old.UpdatedReplicas,
		s.Replicas-s.UpdatedReplicas < old.Replicas-old.UpdatedReplicas,
		s.ReadyReplicas > old.ReadyReplicas,
		s.AvailableReplicas > old.AvailableReplicas:
		// Progress renews the update time, by which the deadline is measured, also when
		// status and reason stay.
		c := appsv1.DeploymentCondition{
			Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reasonUpdated, Message: subject + " is progressing.",
			LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}
		if before != nil && before.Status == corev1.ConditionTrue {
			c.LastTransitionTime = before.LastTransitionTime
		}
		dropCondition(s, appsv1.DeploymentProgressing)
		s.Conditions = append(s.Conditions, c)
	case before != nil && before.Reason != reasonComplete &&
		(before.Reason == reasonTimedOut || deadline(d, before).Before(now)):
		setCondition(s, now, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut, subject+" has timed out progressing.")
	}
	c := condition(s, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == reasonTimedOut || complete(d, s) {
		return 0
	}
	// A second more: times in the API are whole seconds.
	return max(deadline(d, c).Sub(now), 0) + time.Second
}

func deadline(d *appsv1.Deployment, c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// failures shows the first ReplicaFailure of a set, the current one's before the others'.
func failures(s *appsv1.DeploymentStatus, current *appsv1.ReplicaSet, all []*appsv1.ReplicaSet) {
	sets := all
	if current != nil {
		sets = append([]*appsv1.ReplicaSet{current}, all...)
	}
	for _, rs := range sets {
		for _, c := range rs.Status.Conditions {
			if c.Type != appsv1.ReplicaSetReplicaFailure {
				continue
			}
			old := condition(s, appsv1.DeploymentReplicaFailure)
			if old != nil && old.Status == c.Status && old.Reason == c.Reason {
				return
			}
			dropCondition(s, appsv1.DeploymentReplicaFailure)
			s.Conditions = append(s.Conditions, appsv1.DeploymentCondition{
				Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
				LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
			})
			return
		}
	}
	dropCondition(s, appsv1.DeploymentReplicaFailure)
}
