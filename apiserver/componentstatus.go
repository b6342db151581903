package apiserver

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	componentStatuses = schema.GroupResource{Resource: "componentstatuses"}
	leases            = "coordination.k8s.io/leases"
)

// componentStatus tells whether the components of the control plane work. Upstream asks
// them on ports of this host, which says nothing where they run elsewhere, or within this
// process; that somebody holds their Lease holds everywhere.
func (s *Server) componentStatus(ctx context.Context) []runtime.Object {
	return []runtime.Object{
		status("scheduler", s.leader(ctx, "kube-scheduler")),
		status("controller-manager", s.leader(ctx, "kube-controller-manager")),
		status("etcd-0", s.storeAnswers(ctx)),
	}
}

func status(name string, err error) *corev1.ComponentStatus {
	c := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err != nil {
		c.Status, c.Message = corev1.ConditionFalse, err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []corev1.ComponentCondition{c}}
}

func (s *Server) storeAnswers(ctx context.Context) error {
	for _, c := range storeCheck(s.c.Caches) {
		if c.Live {
			return c.Run(ctx)
		}
	}
	return nil
}

// leader fails unless somebody holds a component's Lease.
func (s *Server) leader(ctx context.Context, name string) error {
	cache, ok := s.c.Caches.Resource(leases)
	if !ok {
		return fmt.Errorf("%s are not served", leases)
	}
	o, err := cache.Get(ctx, metav1.NamespaceSystem, name, "")
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s has never held its Lease", name)
	}
	if err != nil {
		return err
	}
	l, ok := o.Runtime().(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("the Lease of %s is a %T", name, o.Runtime())
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return fmt.Errorf("nobody holds the Lease of %s", name)
	}
	end := l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second)
	if late := s.c.Clock.Now().Sub(end); late > 0 {
		return fmt.Errorf("the Lease of %s ended %s ago", name, late.Round(time.Second))
	}
	return nil
}
