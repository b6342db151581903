package replicaset

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// object is a ReplicaSet or a ReplicationController.
type object interface {
	runtime.Object
	metav1.Object
}

// set is what both kinds say, read from a shared object.
type set struct {
	obj      object
	selector labels.Selector
	replicas int32
	minReady int32
	template *corev1.PodTemplateSpec
	status   appsv1.ReplicaSetStatus
}

// kind is what differs between ReplicaSets and ReplicationControllers.
type kind struct {
	gvk      schema.GroupVersionKind
	informer cache.SharedIndexInformer
	get      func(namespace, name string) (*set, error)
	list     func(namespace string) ([]*set, error)
	live     func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// writeStatus replaces the status of the very revision that s was read from.
	writeStatus func(ctx context.Context, s *set, status appsv1.ReplicaSetStatus) (metav1.Object, error)
}

func replicaSets(client kubernetes.Interface, lister appslisters.ReplicaSetLister, inf cache.SharedIndexInformer) kind {
	return kind{
		gvk:      appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		informer: inf,
		get: func(namespace, name string) (*set, error) {
			rs, err := lister.ReplicaSets(namespace).Get(name)
			if err != nil {
				return nil, err
			}
			return setOf(rs)
		},
		list: func(namespace string) ([]*set, error) {
			all, err := lister.ReplicaSets(namespace).List(labels.Everything())
			if err != nil {
				return nil, fmt.Errorf("listing ReplicaSets: %w", err)
			}
			return eachSet(all, setOf), nil
		},
		live: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		writeStatus: func(ctx context.Context, s *set, status appsv1.ReplicaSetStatus) (metav1.Object, error) {
			rs := s.obj.DeepCopyObject().(*appsv1.ReplicaSet)
			rs.Status = status
			return client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
		},
	}
}

func setOf(rs *appsv1.ReplicaSet) (*set, error) {
	sel, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("ReplicaSet %s/%s: spec.selector: %w", rs.Namespace, rs.Name, err)
	}
	s := &set{obj: rs, selector: sel, replicas: 1, minReady: rs.Spec.MinReadySeconds, template: &rs.Spec.Template, status: rs.Status}
	if rs.Spec.Replicas != nil {
		s.replicas = *rs.Spec.Replicas
	}
	return s, nil
}

func replicationControllers(client kubernetes.Interface, lister corelisters.ReplicationControllerLister, inf cache.SharedIndexInformer) kind {
	return kind{
		gvk:      corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		informer: inf,
		get: func(namespace, name string) (*set, error) {
			rc, err := lister.ReplicationControllers(namespace).Get(name)
			if err != nil {
				return nil, err
			}
			return setOfRC(rc)
		},
		list: func(namespace string) ([]*set, error) {
			all, err := lister.ReplicationControllers(namespace).List(labels.Everything())
			if err != nil {
				return nil, fmt.Errorf("listing ReplicationControllers: %w", err)
			}
			return eachSet(all, setOfRC), nil
		},
		live: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		writeStatus: func(ctx context.Context, s *set, status appsv1.ReplicaSetStatus) (metav1.Object, error) {
			rc := s.obj.DeepCopyObject().(*corev1.ReplicationController)
			rc.Status = rcStatus(status)
			return client.CoreV1().ReplicationControllers(rc.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
		},
	}
}

func setOfRC(rc *corev1.ReplicationController) (*set, error) {
	template := rc.Spec.Template
	if template == nil {
		template = &corev1.PodTemplateSpec{}
	}
	s := &set{
		obj:      rc,
		selector: labels.Nothing(), // an empty map must not select every pod
		replicas: 1,
		minReady: rc.Spec.MinReadySeconds,
		template: template,
		status: appsv1.ReplicaSetStatus{
			Replicas:             rc.Status.Replicas,
			FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:        rc.Status.ReadyReplicas,
			AvailableReplicas:    rc.Status.AvailableReplicas,
			ObservedGeneration:   rc.Status.ObservedGeneration,
		},
	}
	if len(rc.Spec.Selector) > 0 {
		s.selector = labels.SelectorFromSet(rc.Spec.Selector)
	}
	if rc.Spec.Replicas != nil {
		s.replicas = *rc.Spec.Replicas
	}
	for _, c := range rc.Status.Conditions {
		s.status.Conditions = append(s.status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return s, nil
}

func rcStatus(status appsv1.ReplicaSetStatus) corev1.ReplicationControllerStatus {
	rc := corev1.ReplicationControllerStatus{
		Replicas:             status.Replicas,
		FullyLabeledReplicas: status.FullyLabeledReplicas,
		ReadyReplicas:        status.ReadyReplicas,
		AvailableReplicas:    status.AvailableReplicas,
		ObservedGeneration:   status.ObservedGeneration,
	}
	for _, c := range status.Conditions {
		rc.Conditions = append(rc.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return rc
}

// eachSet skips those with a broken selector: they select nothing.
func eachSet[T any](objs []T, of func(T) (*set, error)) []*set {
	sets := make([]*set, 0, len(objs))
	for _, o := range objs {
		if s, err := of(o); err == nil {
			sets = append(sets, s)
		}
	}
	return sets
}
