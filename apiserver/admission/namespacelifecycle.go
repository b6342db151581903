package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// namespaceLifecycle keeps objects out of namespaces that do not exist or are going away,
// and the system's namespaces alive.
type namespaceLifecycle struct {
	mutating
	caches lookup.Caches
	clock  clock.PassiveClock

	// deleted are namespaces whose deletion went through here lately: the cache may still
	// show them as active, so they are read from the store.
	mu      sync.Mutex
	deleted map[string]time.Time
}

const liveLookup = 30 * time.Second

func newNamespaceLifecycle(caches lookup.Caches, c clock.PassiveClock) *namespaceLifecycle {
	return &namespaceLifecycle{caches: caches, clock: c, deleted: map[string]time.Time{}}
}

func immortal(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem || name == metav1.NamespacePublic
}

func (n *namespaceLifecycle) Admit(ctx context.Context, a *seams.Attributes) error {
	if a.Resource.GroupResource() == namespaces {
		if a.Operation != seams.Delete {
			return nil
		}
		if immortal(a.Name) {
			return apierrors.NewForbidden(namespaces, a.Name, errors.New("this namespace may not be deleted"))
		}
		n.noteDeleted(a.Name)
		return nil
	}
	// Updates and deletes always go on: what is there must be able to go.
	if a.Namespace == "" || a.Operation == seams.Update || a.Operation == seams.Delete {
		return nil
	}
	if a.Resource.Group == "authorization.k8s.io" && a.Resource.Resource == "localsubjectaccessreviews" {
		return nil // asking reveals nothing about the namespace
	}
	get := lookup.CachedOrFresh[*corev1.Namespace]
	if n.deletedLately(a.Namespace) {
		get = lookup.Fresh[*corev1.Namespace]
	}
	ns, err := get(ctx, n.caches, namespaces, "", a.Namespace)
	if err != nil {
		return err
	}
	if a.Operation != seams.Create || ns.Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	err = forbid(a, "unable to create new content in namespace %s because it is being terminated", a.Namespace)
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}

func (n *namespaceLifecycle) noteDeleted(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	for k, until := range n.deleted {
		if now.After(until) {
			delete(n.deleted, k)
		}
	}
	n.deleted[name] = now.Add(liveLookup)
}

func (n *namespaceLifecycle) deletedLately(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	until, ok := n.deleted[name]
	return ok && !n.clock.Now().After(until)
}
