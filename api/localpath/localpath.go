// Package localpath is what the provisioner of local-path volumes and its part on the nodes
// say to each other, in two annotations of the Node: the provisioner orders directories to be
// made or removed, the node reports which it has. A kubelet may write its own Node, so this
// needs no right that nodes do not have (docs/adr/0004).
//
// Must not: touch disks or the API.
package localpath

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// Provisioner is what StorageClasses and claims call the provisioner.
	Provisioner = "skiff.dev/local-path"
	// ReportAnnotation of a Node is written by the node, OrdersAnnotation by the provisioner.
	ReportAnnotation = "local-path.skiff.dev/report"
	OrdersAnnotation = "local-path.skiff.dev/orders"
	// NodeAnnotation of a PersistentVolume names the node that has its directory.
	NodeAnnotation = "local-path.skiff.dev/node"

	prefix = "pvc-"
)

// Report is what a node has.
type Report struct {
	// Directory holds the volumes' directories.
	Directory string `json:"directory"`
	// Volumes are the names of those there are, sorted.
	Volumes []string `json:"volumes,omitempty"`
	// Failed says for each order that could not be done why.
	Failed map[string]string `json:"failed,omitempty"`
}

// Orders are what a node is to do. Remove takes away what a directory holds, Prune only a
// directory that holds nothing.
type Orders struct {
	Make   []string `json:"make,omitempty"`
	Remove []string `json:"remove,omitempty"`
	Prune  []string `json:"prune,omitempty"`
}

// Empty says that there is nothing to do.
func (o Orders) Empty() bool { return len(o.Make)+len(o.Remove)+len(o.Prune) == 0 }

// VolumeName is the name of a claim's volume and of its directory.
func VolumeName(claimUID string) string { return prefix + claimUID }

// ClaimUID is the claim that a volume was made for.
func ClaimUID(volume string) string { return strings.TrimPrefix(volume, prefix) }

// Valid says whether a name can be that of a volume's directory. Whatever an order says, nothing
// else is ever touched.
func Valid(name string) bool {
	return strings.HasPrefix(name, prefix) && len(validation.IsDNS1123Label(name)) == 0
}

// ReadReport decodes the annotation of a node; false without one.
func ReadReport(annotations map[string]string) (Report, bool, error) {
	var r Report
	ok, err := read(annotations, ReportAnnotation, &r)
	r.Volumes = slices.DeleteFunc(r.Volumes, func(n string) bool { return !Valid(n) })
	return r, ok && err == nil && strings.HasPrefix(r.Directory, "/"), err
}

// ReadOrders decodes the annotation of a node.
func ReadOrders(annotations map[string]string) (Orders, error) {
	var o Orders
	_, err := read(annotations, OrdersAnnotation, &o)
	return o, err
}

func read(annotations map[string]string, key string, into any) (bool, error) {
	text, ok := annotations[key]
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return false, fmt.Errorf("decode annotation %s: %w", key, err)
	}
	return true, nil
}

// Patch is the merge patch of a node that sets one of the annotations; nil removes it. The uid is
// a precondition: another node of that name keeps what it has.
func Patch(uid types.UID, key string, value any) ([]byte, error) {
	var text *string
	if value != nil {
		b, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode annotation %s: %w", key, err)
		}
		s := string(b)
		text = &s
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "annotations": map[string]*string{key: text}}})
}

// Equal compares two reports.
func (r Report) Equal(o Report) bool {
	return r.Directory == o.Directory && slices.Equal(r.Volumes, o.Volumes) && maps.Equal(r.Failed, o.Failed)
}

// Equal compares two sets of orders.
func (o Orders) Equal(p Orders) bool {
	return slices.Equal(o.Make, p.Make) && slices.Equal(o.Remove, p.Remove) && slices.Equal(o.Prune, p.Prune)
}
