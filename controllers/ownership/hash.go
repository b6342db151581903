package ownership

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// TemplateHash is the pod-template-hash label's value, the same as upstream's, so that
// an upstream controller finds the ReplicaSets that we made, and the other way round.
func TemplateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	// The %v is part of the hash: it decides how the dump's text is written.
	_, _ = fmt.Fprintf(h, "%v", dump.ForHash(*template)) // a hash never fails to write
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		_, _ = h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}
