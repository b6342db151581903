// Package manifests applies what lies in a directory: server-side, again when a file changes,
// pruned when it goes, and tells what became of each file.
//
// Owns: the field manager skiff-manifests, the ApplySet kube-system/skiff-manifests and the file
// of states. Must not: touch objects that bear not the set's label.
package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const (
	manager = "skiff-manifests"
	// Retries of what failed begin soon, for custom resources whose definition has just come.
	leastRetry, mostRetry = 250 * time.Millisecond, time.Minute
)

// Config of the manifests.
type Config struct {
	// Dir holds the files; it may be missing. StatusFile gets the states.
	Dir, StatusFile string
	Client          dynamic.Interface
	Discovery       discovery.DiscoveryInterface
	// Tooling is who we are to other tools, as name/version.
	Tooling string
	// Interval between two looks at the directory; 0: a second. What has changed is taken up when
	// two looks see the same: a file that is still being written is not pruned by half.
	Interval time.Duration
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Manifests applies.
type Manifests struct {
	cfg    Config
	files  map[string]*file
	dirty  bool // the set may have members that no file wants
	mapper meta.RESTMapper
}

// file is what is known of one.
type file struct {
	stamp   stamp
	objects []Object
	invalid error
	failed  map[string]error // by At(); nil: not tried
	applied int
}

func (f *file) done() bool { return f.invalid != nil || f.failed != nil && len(f.failed) == 0 }

// New checks the configuration and starts nothing.
func New(cfg Config) (*Manifests, error) {
	if cfg.Dir == "" || cfg.StatusFile == "" || cfg.Client == nil || cfg.Discovery == nil || cfg.Logger == nil {
		return nil, errors.New("manifests: Dir, StatusFile, Client, Discovery and Logger are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Interval == 0 {
		cfg.Interval = time.Second
	}
	// What a former run applied may have lost its file meanwhile.
	return &Manifests{cfg: cfg, files: map[string]*file{}, dirty: true}, nil
}

// Run applies until ctx ends.
func (m *Manifests) Run(ctx context.Context) error {
	var last map[string]stamp
	var retryAt time.Time
	retry := leastRetry
	for {
		now := m.cfg.Clock.Now()
		found, err := look(m.cfg.Dir)
		switch {
		case err != nil: // what cannot be seen is not pruned
			m.cfg.Logger.Warn("manifests", "err", err)
		case !maps.Equal(found, last) && (last != nil || recent(found, now, m.cfg.Interval)):
			last = found // look again, whether it stays so
		default:
			last = found
			changed := m.take(found)
			if changed {
				retry = leastRetry
			}
			if changed || m.unfinished() && !now.Before(retryAt) {
				if err := m.pass(ctx); err != nil && ctx.Err() == nil {
					m.cfg.Logger.Warn("manifests: it will be tried again", "err", err, "after", retry)
				}
				if m.unfinished() {
					retryAt = m.cfg.Clock.Now().Add(retry)
					retry = min(2*retry, mostRetry)
				}
			}
		}
		wait := m.cfg.Interval
		if m.unfinished() {
			wait = min(wait, max(leastRetry, retryAt.Sub(m.cfg.Clock.Now())))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.cfg.Clock.After(wait):
		}
	}
}

func recent(found map[string]stamp, now time.Time, interval time.Duration) bool {
	for _, s := range found {
		if age := now.Sub(s.mtime); age >= 0 && age < interval {
			return true
		}
	}
	return false
}

func (m *Manifests) unfinished() bool {
	for _, f := range m.files {
		if !f.done() {
			return true
		}
	}
	return m.dirty
}

// take reads what is new and forgets what is gone.
func (m *Manifests) take(found map[string]stamp) bool {
	changed := false
	for name := range m.files {
		if _, ok := found[name]; !ok {
			delete(m.files, name)
			changed = true
		}
	}
	for name, s := range found {
		if f := m.files[name]; f != nil && f.stamp == s {
			continue
		}
		f := &file{stamp: s}
		f.objects, f.invalid = read(m.cfg.Dir, name, s)
		if f.invalid != nil {
			m.cfg.Logger.Error("manifest is left out", "err", f.invalid)
		}
		m.files[name] = f
		changed = true
	}
	m.dirty = m.dirty || changed
	return changed
}

// pass applies what is not yet, and prunes.
func (m *Manifests) pass(ctx context.Context) error {
	defer m.tell()
	s, err := m.readSet(ctx)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(m.files))
	var wanted []Object
	for _, name := range names {
		wanted = append(wanted, m.files[name].objects...)
	}
	if len(wanted) == 0 && !s.exists {
		m.dirty = false
		for _, f := range m.files {
			f.failed = map[string]error{}
		}
		return nil
	}
	groups, err := restmapper.GetAPIGroupResources(m.cfg.Discovery)
	if err != nil {
		return fmt.Errorf("discover kinds: %w", err)
	}
	m.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	defer func() { m.mapper = nil }() // a megabyte; passes are rare

	// The set's parent knows of all kinds before there is a member of them.
	wider := set{exists: true, kinds: maps.Clone(s.kinds), spaces: maps.Clone(s.spaces)}
	for _, o := range wanted {
		wider.kinds[o.GroupVersionKind().GroupKind()] = true
		if mapping, err := m.mapping(o); err == nil {
			if ns := m.namespace(o, mapping); ns != "" && ns != metav1.NamespaceSystem {
				wider.spaces[ns] = true
			}
		}
	}
	if !wider.equal(s) {
		if err := m.writeSet(ctx, wider); err != nil {
			return err
		}
	}
	keep := m.applyAll(ctx, wanted)
	if m.dirty {
		left, err := m.prune(ctx, wider, keep)
		if err != nil {
			return err
		}
		if !left.equal(wider) {
			if err := m.writeSet(ctx, left); err != nil {
				return err
			}
		}
		m.dirty = false
	}
	return nil
}

// key is an object, whatever its version.
type key struct {
	schema.GroupKind
	namespace, name string
}

// applyAll applies what has not been, in order, and returns all that should be there.
func (m *Manifests) applyAll(ctx context.Context, wanted []Object) map[key]bool {
	keep, first := map[key]bool{}, map[key]Object{}
	todo := map[string]bool{}
	for name, f := range m.files {
		if !f.done() {
			todo[name] = true
			f.failed, f.applied = map[string]error{}, 0
		}
	}
	slices.SortStableFunc(wanted, func(a, b Object) int { return rank(a) - rank(b) })
	for _, o := range wanted {
		f := m.files[o.File]
		mapping, err := m.mapping(o)
		k := key{o.GroupVersionKind().GroupKind(), o.GetNamespace(), o.GetName()}
		if err == nil {
			k.namespace = m.namespace(o, mapping)
		}
		keep[k] = true
		if other, ok := first[k]; ok {
			f.fail(o, fmt.Errorf("is in %s too", other.At()))
			continue
		}
		first[k] = o
		if !todo[o.File] {
			continue
		}
		if err == nil {
			err = m.apply(ctx, o, mapping, k.namespace)
		}
		if err != nil {
			f.fail(o, err)
			continue
		}
		f.applied++
	}
	return keep
}

func (f *file) fail(o Object, err error) {
	if f.failed == nil {
		f.failed = map[string]error{}
	}
	f.failed[o.At()] = fmt.Errorf("%s: %s: %s", o.At(), what(o.Unstructured), strings.Join(strings.Fields(err.Error()), " "))
}

// rank puts first what others need.
func rank(o Object) int {
	switch o.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Kind: "Namespace"}:
		return 0
	case schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}:
		return 1
	}
	switch o.GetKind() {
	case "PriorityClass", "StorageClass", "RuntimeClass", "IngressClass", "ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ConfigMap", "Secret", "LimitRange", "ResourceQuota":
		return 2
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService":
		return 4 // they may stop others from being applied
	}
	return 3
}

func (m *Manifests) mapping(o Object) (*meta.RESTMapping, error) {
	gvk := o.GroupVersionKind()
	mapping, err := m.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the cluster has no kind %s in %s (yet)", gvk.Kind, gvk.GroupVersion())
	}
	return mapping, err
}

func (m *Manifests) namespace(o Object, mapping *meta.RESTMapping) string {
	switch {
	case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
		return ""
	case o.GetNamespace() == "":
		return metav1.NamespaceDefault
	}
	return o.GetNamespace()
}

func (m *Manifests) apply(ctx context.Context, o Object, mapping *meta.RESTMapping, namespace string) error {
	u := o.DeepCopy()
	u.SetNamespace(namespace)
	labels, notes := u.GetLabels(), u.GetAnnotations()
	if labels == nil {
		labels = map[string]string{}
	}
	if notes == nil {
		notes = map[string]string{}
	}
	labels[partOfLabel], notes[fileNote] = ownID, o.File
	u.SetLabels(labels)
	u.SetAnnotations(notes)
	return m.patch(ctx, mapping.Resource, u)
}

func (m *Manifests) patch(ctx context.Context, gvr schema.GroupVersionResource, u *unstructured.Unstructured) error {
	data, err := json.Marshal(u)
	if err != nil {
		return fmt.Errorf("encode %s: %w", what(u), err)
	}
	_, err = m.cfg.Client.Resource(gvr).Namespace(u.GetNamespace()).Patch(ctx, u.GetName(), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: manager, Force: ptr.To(true), FieldValidation: metav1.FieldValidationStrict})
	return err
}

// prune deletes members of the set that no file wants, and returns the set that is left.
func (m *Manifests) prune(ctx context.Context, s set, keep map[key]bool) (set, error) {
	left := set{exists: true, kinds: map[schema.GroupKind]bool{}, spaces: map[string]bool{}}
	kinds := slices.SortedFunc(maps.Keys(s.kinds), func(a, b schema.GroupKind) int { // reverse of applying
		ra, rb := rank(kindOnly(a)), rank(kindOnly(b))
		if ra != rb {
			return rb - ra
		}
		return strings.Compare(a.String(), b.String())
	})
	var errs []error
	for _, gk := range kinds {
		mapping, err := m.mapper.RESTMapping(gk)
		if err != nil {
			// Its definition is gone or its server is away: it stays in the set.
			left.kinds[gk] = true
			continue
		}
		list, err := m.cfg.Client.Resource(mapping.Resource).List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + ownID})
		if err != nil {
			errs = append(errs, fmt.Errorf("list %s to prune: %w", gk.Kind, err))
			continue
		}
		for i := range list.Items {
			u := &list.Items[i]
			f := m.files[u.GetAnnotations()[fileNote]]
			if keep[key{gk, u.GetNamespace(), u.GetName()}] || f != nil && f.invalid != nil {
				left.kinds[gk] = true
				if ns := u.GetNamespace(); ns != "" && ns != metav1.NamespaceSystem {
					left.spaces[ns] = true
				}
				continue
			}
			uid, background := u.GetUID(), metav1.DeletePropagationBackground
			err := m.cfg.Client.Resource(mapping.Resource).Namespace(u.GetNamespace()).Delete(ctx, u.GetName(),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("prune %s: %w", what(u), err))
				continue
			}
			m.cfg.Logger.Info("manifests: pruned", "object", what(u), "file", u.GetAnnotations()[fileNote])
		}
	}
	for k := range keep { // those that could not be applied yet are wanted all the same
		left.kinds[k.GroupKind] = true
		if k.namespace != "" && k.namespace != metav1.NamespaceSystem {
			left.spaces[k.namespace] = true
		}
	}
	return left, errors.Join(errs...)
}

func kindOnly(gk schema.GroupKind) Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gk.WithVersion("v1"))
	return Object{Unstructured: u}
}
