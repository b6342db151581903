package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Everything applied is an ApplySet (KEP-3659): members bear a label with the set's id, the
// set's parent says of which kinds there are any. So what is to be pruned is found on the
// objects themselves, whatever was killed when, and kubectl knows the set too.
const (
	parentName  = "skiff-manifests"
	idLabel     = "applyset.kubernetes.io/id"
	partOfLabel = "applyset.kubernetes.io/part-of"
	toolingNote = "applyset.kubernetes.io/tooling"
	kindsNote   = "applyset.kubernetes.io/contains-group-kinds"
	spacesNote  = "applyset.kubernetes.io/additional-namespaces"
	// fileNote of a member is the file that it comes from.
	fileNote = "skiff.dev/manifest"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// setID is the set's id, made of what identifies its parent.
func setID(name, namespace, kind, group string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{name, namespace, kind, group}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}

var ownID = setID(parentName, metav1.NamespaceSystem, "ConfigMap", "")

// set is what the parent says.
type set struct {
	exists bool
	kinds  map[schema.GroupKind]bool
	spaces map[string]bool
}

func (m *Manifests) readSet(ctx context.Context) (set, error) {
	s := set{kinds: map[schema.GroupKind]bool{}, spaces: map[string]bool{}}
	u, err := m.cfg.Client.Resource(configMaps).Namespace(metav1.NamespaceSystem).Get(ctx, parentName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read config map %s: %w", parentName, err)
	}
	s.exists = true
	for _, gk := range strings.Split(u.GetAnnotations()[kindsNote], ",") {
		if gk != "" {
			s.kinds[schema.ParseGroupKind(gk)] = true
		}
	}
	for _, ns := range strings.Split(u.GetAnnotations()[spacesNote], ",") {
		if ns != "" {
			s.spaces[ns] = true
		}
	}
	return s, nil
}

// writeSet tells the parent; before members are applied it has more, after pruning less.
func (m *Manifests) writeSet(ctx context.Context, s set) error {
	var kinds []string
	for gk := range s.kinds {
		kinds = append(kinds, gk.String())
	}
	slices.Sort(kinds)
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("v1")
	u.SetKind("ConfigMap")
	u.SetNamespace(metav1.NamespaceSystem)
	u.SetName(parentName)
	u.SetLabels(map[string]string{idLabel: ownID})
	u.SetAnnotations(map[string]string{toolingNote: m.cfg.Tooling, kindsNote: strings.Join(kinds, ","), spacesNote: strings.Join(slices.Sorted(maps.Keys(s.spaces)), ",")})
	return m.patch(ctx, configMaps, u)
}

func (s set) equal(o set) bool {
	return s.exists == o.exists && maps.Equal(s.kinds, o.kinds) && maps.Equal(s.spaces, o.spaces)
}
