// Package history keeps the ControllerRevisions of DaemonSets and StatefulSets, in
// upstream's form, so that kubectl rollout history and undo work, and upstream's
// controllers can take over.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Store reads and writes revisions.
type Store struct {
	Client kubernetes.Interface
	Index  ownership.Index[*appsv1.ControllerRevision]
}

// List returns an owner's revisions, oldest first, adopting and releasing as needed.
func (s Store) List(ctx context.Context, owner metav1.Object, kind schema.GroupVersionKind, selector labels.Selector, live func(context.Context) (metav1.Object, error)) ([]*appsv1.ControllerRevision, error) {
	claim := ownership.Claim[*appsv1.ControllerRevision]{
		Owner: owner, Kind: kind, Selector: selector, Live: live,
		Patch: func(ctx context.Context, r *appsv1.ControllerRevision, patch []byte) error {
			_, err := s.Client.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	all, err := claim.All(ctx, append(s.Index.OwnedBy(owner.GetUID()), s.Index.Orphans(owner.GetNamespace())...))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Data is the patch that turns an object's spec.template into this one.
func Data(template *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("encoding pod template: %w", err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("encoding pod template: %w", err)
	}
	m["$patch"] = "replace"
	raw, err = json.Marshal(map[string]any{"spec": map[string]any{"template": m}})
	if err != nil {
		return nil, fmt.Errorf("encoding pod template: %w", err)
	}
	return raw, nil
}

// Template is the pod template of a revision.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &patch); err != nil {
		return nil, fmt.Errorf("decoding ControllerRevision %s: %w", r.Name, err)
	}
	return &patch.Spec.Template, nil
}

// Hash of a revision's data, salted after collisions.
func Hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // a hash never fails to write
	if collisions != nil {
		_, _ = h.Write([]byte(strconv.FormatInt(int64(*collisions), 10)))
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// Name of an owner's revision with that hash.
func Name(owner, hash string) string {
	const most = 223
	if len(owner) > most {
		owner = owner[:most]
	}
	return owner + "-" + hash
}

// New makes a revision object.
func New(owner metav1.Object, kind schema.GroupVersionKind, name string, l map[string]string, data []byte, revision int64) *appsv1.ControllerRevision {
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: name, Labels: l, Annotations: maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: revision,
	}
}

// ErrCollision says that another revision has the name: count it and try again.
var ErrCollision = errors.New("name of the revision is taken by another")

// Equal compares what two revisions say, whatever the order of fields.
func Equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	ca, err1 := json.Marshal(x)
	cb, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(ca, cb)
}

// Next is the number after the newest of all.
func Next(all []*appsv1.ControllerRevision) int64 {
	if len(all) == 0 {
		return 1
	}
	return all[len(all)-1].Revision + 1
}

// Ensure makes want, whose Revision is Next(all), the newest revision: it is there, an
// older one of the same data is renumbered, or it is created.
func (s Store) Ensure(ctx context.Context, all []*appsv1.ControllerRevision, want *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	client := s.Client.AppsV1().ControllerRevisions(want.Namespace)
	for i := len(all) - 1; i >= 0; i-- {
		if !Equal(all[i].Data.Raw, want.Data.Raw) {
			continue
		}
		if i == len(all)-1 {
			return all[i], nil
		}
		next := all[i].DeepCopy()
		next.Revision = want.Revision
		r, err := client.Update(ctx, next, metav1.UpdateOptions{})
		if err != nil {
			return nil, fmt.Errorf("renumbering ControllerRevision %s: %w", next.Name, err)
		}
		return r, nil
	}
	r, err := client.Create(ctx, want, metav1.CreateOptions{})
	if err == nil {
		return r, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating ControllerRevision: %w", err)
	}
	there, err := client.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading ControllerRevision %s: %w", want.Name, err)
	}
	if Equal(there.Data.Raw, want.Data.Raw) {
		return there, nil
	}
	return nil, ErrCollision
}

// Truncate deletes the oldest of those that are not live, beyond limit.
func (s Store) Truncate(ctx context.Context, all []*appsv1.ControllerRevision, live map[string]bool, limit int) error {
	dead := slices.DeleteFunc(slices.Clone(all), func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
	if len(dead) <= limit {
		return nil
	}
	for _, r := range dead[:len(dead)-limit] {
		err := s.Client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(r.UID)}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting ControllerRevision %s: %w", r.Name, err)
		}
	}
	return nil
}
