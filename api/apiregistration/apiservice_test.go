package apiregistration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestAPIService(t *testing.T) {
	r := apiServices(func() metav1.Time { return metav1.Unix(2000, 0) })
	service := func(change func(*apiregistrationv1.APIServiceSpec)) *apiregistrationv1.APIService {
		s := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.example.com", CreationTimestamp: metav1.Unix(1000, 0)},
			Spec: apiregistrationv1.APIServiceSpec{Group: "example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 15}}
		if change != nil {
			change(&s.Spec)
		}
		return s
	}
	local := service(nil)
	apitest.Want(t, apitest.Create(r, local))
	apitest.Row(t, r.Row(local, time.Unix(1002, 0)), "v1.example.com", "Local", "True", "2s")
	if local.Status.Conditions[0].LastTransitionTime.Unix() != 2000 {
		t.Error("the condition's time")
	}
	remote := service(func(s *apiregistrationv1.APIServiceSpec) {
		s.Service = &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics"}
	})
	apitest.Want(t, apitest.Create(r, remote))
	if *remote.Spec.Service.Port != 443 {
		t.Error("port")
	}
	remote.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: "Available", Status: "False", Reason: "MissingEndpoints"}}
	apitest.Row(t, r.Row(remote, time.Unix(1002, 0)), "v1.example.com", "kube-system/metrics", "False (MissingEndpoints)", "2s")

	apitest.Want(t, apitest.Create(r, service(func(s *apiregistrationv1.APIServiceSpec) {
		s.Group, s.GroupPriorityMinimum, s.VersionPriority, s.InsecureSkipTLSVerify, s.CABundle = "", 0, 1001, true, []byte("x")
		s.Version = "v2"
	})), "metadata.name: Invalid value: \"v1.example.com\": must be `spec.version+\".\"+spec.group`: \"v2.\"",
		"spec.group: Required value: only v1 may have an empty group", "spec.groupPriorityMinimum: Invalid value: 0", "spec.versionPriority: Invalid value: 1001",
		`spec.caBundle: Invalid value: "1 bytes": local APIServices may not have a caBundle`, "spec.insecureSkipTLSVerify: Invalid value: true")

	next := remote.DeepCopy()
	next.Labels = map[string]string{"a": "b"}
	next.Spec.VersionPriority = 1
	next.Status.Conditions[0].Status = "Maybe"
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, remote), `status.conditions[0].status: Unsupported value: "Maybe": supported values: "True", "False", "Unknown"`)
	if next.Spec.VersionPriority == 1 || next.Labels != nil {
		t.Error("a status update changes more")
	}
}
