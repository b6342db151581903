package cacher

import (
	"bytes"
	"testing"

	"github.com/skiff-k8s/skiff/api/builtin"
)

// Every built-in resource goes to etcd and back, and is the same after a second round:
// defaults that are filled on each read must leave what is filled alone.
func TestBuiltinRoundTrip(t *testing.T) {
	scheme := builtin.Scheme()
	for _, r := range builtin.Resources() {
		if r.StoragePath == "" {
			continue
		}
		c, err := newCodec(r, scheme)
		if err != nil {
			t.Errorf("%s: %v", r.GR(), err)
			continue
		}
		obj := r.New()
		obj.SetName("name")
		if r.Namespaced {
			obj.SetNamespace("ns")
		}
		var last []byte
		for round := range 3 {
			raw, err := c.encode(obj)
			if err != nil {
				t.Errorf("%s: encode: %v", r.GR(), err)
				break
			}
			if isJSON := raw[0] == '{' && raw[len(raw)-1] == '\n'; isJSON != r.StoredAsJSON || !isJSON && !bytes.HasPrefix(raw, protoMagic) {
				t.Errorf("%s: stored as %q", r.GR(), raw)
			}
			if round == 2 && !bytes.Equal(raw, last) {
				t.Errorf("%s: the third encoding is %q, the second was %q", r.GR(), raw, last)
			}
			last = raw
			if obj, err = c.decode(raw, 7); err != nil {
				t.Errorf("%s: decode: %v", r.GR(), err)
				break
			}
			if got := obj.GetObjectKind().GroupVersionKind(); got != r.GVK() || obj.GetResourceVersion() != "7" {
				t.Errorf("%s: decoded as %s at %s", r.GR(), got, obj.GetResourceVersion())
			}
		}
	}
}
