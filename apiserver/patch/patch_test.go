package patch

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

func TestJSON(t *testing.T) {
	const original = `{"a":{"b":1,"c":[1,2]}}`
	for _, c := range []struct {
		kind       types.PatchType
		body, want string
		code       int32
		problems   int
	}{
		{types.JSONPatchType, `[{"op":"add","path":"/a/d","value":2}]`, `{"a":{"b":1,"c":[1,2],"d":2}}`, 0, 0},
		{types.JSONPatchType, `[{"op":"remove","path":"/a/c/0"}]`, `{"a":{"b":1,"c":[2]}}`, 0, 0},
		{types.JSONPatchType, `[{"op":"test","path":"/a/b","value":2}]`, "", 422, 0},
		{types.JSONPatchType, `[{"op":"remove","path":"/x"}]`, "", 422, 0},
		{types.JSONPatchType, `{}`, "", 400, 0},
		{types.JSONPatchType, `[{"op":"add","path":"/a/d","value":2,"extra":1}]`, `{"a":{"b":1,"c":[1,2],"d":2}}`, 0, 1},
		{types.JSONPatchType, "[" + strings.Repeat(`{"op":"add","path":"/a/d","value":2},`, maxOperations) + `{"op":"add","path":"/a/d","value":2}]`, "", 413, 0},
		{types.MergePatchType, `{"a":{"b":null,"d":2}}`, `{"a":{"c":[1,2],"d":2}}`, 0, 0},
		{types.MergePatchType, `{"a":{"d":2,"d":3}}`, `{"a":{"b":1,"c":[1,2],"d":3}}`, 0, 1},
		{types.MergePatchType, `[1]`, "", 400, 0},
	} {
		got, problems, err := JSON(c.kind, []byte(original), []byte(c.body), true)
		name := c.body[:min(len(c.body), 60)]
		if c.code != 0 {
			s, ok := err.(apierrors.APIStatus)
			if !ok || s.Status().Code != c.code {
				t.Errorf("%s: %v, want code %d", name, err, c.code)
			}
			continue
		}
		if err != nil || string(got) != c.want || len(problems) != c.problems {
			t.Errorf("%s: %s %v %v, want %s", name, got, problems, err, c.want)
		}
	}
}

func TestStrategic(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "1"}, {Name: "b", Image: "1"}}}}
	for _, c := range []struct {
		body, want string
		problems   int
		fails      bool
	}{
		{`{"spec":{"containers":[{"name":"b","image":"2"}]}}`, "b:2 a:1", 0, false},
		{`{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}`, "b:1", 0, false},
		{`{"spec":{"containers":[{"name":"c","image":"3"}]}}`, "c:3 a:1 b:1", 0, false},
		{`{"spec":{"nothing":1}}`, "a:1 b:1", 1, false},
		{`{"spec":{"containers":"none"}}`, "", 0, true},
		{`{"spec":`, "", 0, true},
	} {
		into := &corev1.Pod{}
		problems, _, err := Strategic(pod, into, []byte(c.body), true)
		if c.fails {
			if err == nil {
				t.Errorf("%s: no error", c.body)
			}
			continue
		}
		have := map[string]bool{}
		for _, k := range into.Spec.Containers {
			have[k.Name+":"+k.Image] = true
		}
		want := strings.Fields(c.want)
		ok := len(have) == len(want)
		for _, w := range want {
			ok = ok && have[w]
		}
		if err != nil || !ok || len(problems) != c.problems {
			t.Errorf("%s: %v %v %v, want %s", c.body, have, problems, err, c.want)
		}
	}
	if pod.Spec.Containers[0].Image != "1" || len(pod.Spec.Containers) != 2 {
		t.Errorf("the original changed: %v", pod.Spec.Containers)
	}
}
