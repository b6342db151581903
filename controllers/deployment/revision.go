package deployment

import (
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Annotations that Deployment controllers keep on Deployments and ReplicaSets.
const (
	RevisionAnnotation        = "deployment.kubernetes.io/revision"
	RevisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	DesiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	MaxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// maxHistory bounds the revision-history annotation, in characters.
const maxHistory = 2000

// notCopied are a Deployment's annotations that mean something else on a ReplicaSet.
var notCopied = []string{
	corev1.LastAppliedConfigAnnotation, RevisionAnnotation, RevisionHistoryAnnotation,
	DesiredReplicasAnnotation, MaxReplicasAnnotation, appsv1.DeprecatedRollbackTo,
}

// revisionOf is a set's revision; ok is false when the annotation is not a number.
func revisionOf(rs *appsv1.ReplicaSet) (rev int64, ok bool) {
	v, found := rs.Annotations[RevisionAnnotation]
	if !found {
		return 0, true
	}
	rev, err := strconv.ParseInt(v, 10, 64)
	return rev, err == nil
}

// nextRevision is one more than the greatest of the old sets'.
func nextRevision(old []*appsv1.ReplicaSet) int64 {
	var top int64
	for _, rs := range old {
		if rev, ok := revisionOf(rs); ok {
			top = max(top, rev)
		}
	}
	return top + 1
}

// annotate brings the annotations of the current set (a private copy) up to date:
// the Deployment's own, the revision and, when an old set is used again, its history.
func annotate(d *appsv1.Deployment, rs *appsv1.ReplicaSet, revision int64) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !slices.Contains(notCopied, k) {
			rs.Annotations[k] = v
		}
	}
	was, had := rs.Annotations[RevisionAnnotation]
	current, ok := revisionOf(rs)
	if !ok && was != "" || current >= revision {
		return
	}
	rs.Annotations[RevisionAnnotation] = strconv.FormatInt(revision, 10)
	if !had {
		return
	}
	history := []string{was}
	if h := rs.Annotations[RevisionHistoryAnnotation]; h != "" {
		history = append(strings.Split(h, ","), was)
	}
	joined := strings.Join(history, ",")
	for len(joined) > maxHistory && len(history) > 1 {
		history = history[1:]
		joined = strings.Join(history, ",")
	}
	if len(joined) <= maxHistory {
		rs.Annotations[RevisionHistoryAnnotation] = joined
	}
}

// annotateSize records how large the Deployment is to be, by which scaling is told from rolling out.
func annotateSize(d *appsv1.Deployment, rs *appsv1.ReplicaSet) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[DesiredReplicasAnnotation] = strconv.Itoa(int(replicas(d)))
	rs.Annotations[MaxReplicasAnnotation] = strconv.Itoa(int(replicas(d) + maxSurge(d)))
}

// sizeAnnotation reads a size; ok is false when it is missing or nonsense.
func sizeAnnotation(rs *appsv1.ReplicaSet, name string) (int32, bool) {
	v, found := rs.Annotations[name]
	if !found {
		return 0, false
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, false
	}
	return int32(n), true
}
