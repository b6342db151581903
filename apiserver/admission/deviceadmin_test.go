package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func TestDeviceAdmin(t *testing.T) {
	claim := func(admin *bool) *resourcev1.ResourceClaim {
		return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "d", AdminAccess: admin}}}}}}
	}
	allocated := func(admin *bool) *resourcev1.ResourceClaim {
		c := claim(admin)
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", AdminAccess: admin}}}}
		return c
	}
	yes, no := ptr.To(true), ptr.To(false)
	template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim(yes).Spec}}
	d := &deviceAdmin{caches: lookuptest.New(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "admin", Labels: map[string]string{resourcev1.DRAAdminNamespaceLabelKey: "true"}}})}
	for _, c := range []struct {
		name, namespace, subresource string
		obj, old                     runtime.Object
		want                         string
	}{
		{"ordinary", "plain", "", claim(nil), nil, ""},
		{"said no", "plain", "", claim(no), nil, ""},
		{"admin", "plain", "", claim(yes), nil, "spec.devices.requests[0].adminAccess: Forbidden: admin access to devices requires"},
		{"admin, labelled", "admin", "", claim(yes), nil, ""},
		{"template", "plain", "", template, nil, "spec.devices.requests[0].adminAccess"},
		{"no namespace", "gone", "", claim(yes), nil, "could not retrieve namespace"},
		{"update of what there is", "plain", "", claim(yes), claim(yes), ""},
		{"allocation", "plain", "status", allocated(yes), claim(yes), "status.allocation.devices.results[0].adminAccess"},
		{"allocation, labelled", "admin", "status", allocated(yes), claim(yes), ""},
		{"allocation of before", "plain", "status", allocated(yes), allocated(yes), ""},
	} {
		a := &seams.Attributes{Operation: seams.Create, Resource: resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), Subresource: c.subresource,
			Kind: resourcev1.SchemeGroupVersion.WithKind("ResourceClaim"), Namespace: c.namespace, Name: "c", Object: c.obj}
		if c.old != nil {
			a.Operation, a.OldObject = seams.Update, c.old
		}
		err := d.Validate(t.Context(), a)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", c.name, err)
		case c.want != "" && (err == nil || !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want 422 with %q", c.name, err, c.want)
		}
	}
}
