package aggregator

import (
	"encoding/json"
	"testing"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/skiff-k8s/skiff/api/metrics"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// What others may serve in this server's place is registered where nobody has registered it,
// and is its user's from then on.
func TestReplaceableGroups(t *testing.T) {
	var served []*seams.Served
	for _, r := range metrics.Resources() {
		served = append(served, &seams.Served{Resource: r})
	}
	const name = "v1beta1.metrics.k8s.io"
	want := wanted(served)
	if w := want[name]; len(want) != 1 || w == nil || len(w.Labels) != 0 || w.Spec.Service != nil || w.Spec.GroupPriorityMinimum != 100 {
		t.Fatalf("wanted %v", want)
	}
	theirs := want[name].DeepCopy()
	theirs.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}
	for what, tt := range map[string]struct {
		have    *apiregistrationv1.APIService
		started bool
		writes  int
	}{
		"nobody's":                  {nil, false, 1},
		"ours of a former start":    {want[name], false, 0},
		"metrics-server's":          {theirs, false, 0},
		"metrics-server's, running": {theirs, true, 0},
		"deleted":                   {nil, true, 0},
	} {
		have := map[string]*apiregistrationv1.APIService{}
		if tt.have != nil {
			have[name] = tt.have
		}
		if steps := plan(want, have, map[string]bool{name: tt.started}); len(steps) != tt.writes {
			t.Errorf("%s: %d writes, want %d", what, len(steps), tt.writes)
		}
	}
}

// A group that this server has, too, is in discovery once, as the other server tells it.
func TestDiscoveryOfAGroupThatIsReplaced(t *testing.T) {
	own := discoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items: []discoveryv2.APIGroupDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: "metrics.k8s.io"}, Versions: []discoveryv2.APIVersionDiscovery{
			{Version: "v1beta1", Freshness: discoveryv2.DiscoveryFreshnessCurrent, Resources: []discoveryv2.APIResourceDiscovery{{Resource: "nodes"}}}}}},
	}
	body, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	other := &remote{service: &apiregistrationv1.APIService{Status: apiregistrationv1.APIServiceStatus{
		Conditions: []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}}}}
	other.discovery.Store(&discoveryv2.APIVersionDiscovery{Version: "v1beta1", Freshness: discoveryv2.DiscoveryFreshnessCurrent,
		Resources: []discoveryv2.APIResourceDiscovery{{Resource: "pods"}}})
	body, ok := addDiscovery(body, map[schema.GroupVersion]*remote{metrics.GroupVersion: other})
	var got discoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(body, &got); err != nil || !ok {
		t.Fatal(err, ok)
	}
	if len(got.Items) != 1 || len(got.Items[0].Versions) != 1 || got.Items[0].Versions[0].Resources[0].Resource != "pods" {
		t.Errorf("discovery %s", body)
	}
}
