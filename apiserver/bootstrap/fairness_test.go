package bootstrap

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

func freshSchema(t *testing.T, c *lookuptest.Caches, name string) *flowcontrolv1.FlowSchema {
	t.Helper()
	f, err := lookup.Fresh[*flowcontrolv1.FlowSchema](t.Context(), c, flowSchemas, "", name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Every case is an object of a standard name as somebody left it, and whose it stays.
func TestFairnessIsKept(t *testing.T) {
	changed := func(f *flowcontrolv1.FlowSchema, auto string, generation int64) *flowcontrolv1.FlowSchema {
		f = f.DeepCopy()
		f.Spec.MatchingPrecedence = 4321
		f.Generation, f.Annotations = generation, nil
		if auto != "" {
			f.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: auto}
		}
		return f
	}
	for name, test := range map[string]struct {
		have *flowcontrolv1.FlowSchema
		ours bool
	}{
		"suggested, kept up to date":               {changed(bootstrap.SuggestedFlowSchemaProbes, "true", 7), true},
		"suggested, the user's":                    {changed(bootstrap.SuggestedFlowSchemaProbes, "false", 1), false},
		"suggested, never changed since its start": {changed(bootstrap.SuggestedFlowSchemaProbes, "", 1), true},
		"suggested, changed":                       {changed(bootstrap.SuggestedFlowSchemaProbes, "", 2), false},
		"mandatory, whatever it says":              {changed(bootstrap.MandatoryFlowSchemaCatchAll, "false", 3), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCaches(t)
			c.Create(test.have)
			if err := newBootstrap(t, c, "192.0.2.1").ensureFairness(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := freshSchema(t, c, test.have.Name)
			if ours := got.Spec.MatchingPrecedence != 4321; ours != test.ours {
				t.Errorf("precedence %d", got.Spec.MatchingPrecedence)
			}
			if test.ours && got.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
				t.Errorf("annotations %v", got.Annotations)
			}
		})
	}
}

func TestFairnessObjects(t *testing.T) {
	c := newCaches(t)
	old := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "once-suggested", Annotations: map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}}}
	users := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	exempt := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	exempt.Spec.Exempt.NominalConcurrencyShares = ptr.To(int32(7)) // which users may choose
	for _, o := range []api.Object{old, users, exempt} {
		c.Create(o)
	}
	if err := newBootstrap(t, c, "192.0.2.1").ensureFairness(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := lookup.Fresh[*flowcontrolv1.FlowSchema](t.Context(), c, flowSchemas, "", "once-suggested"); !apierrors.IsNotFound(err) {
		t.Errorf("what an earlier version suggested: %v", err)
	}
	freshSchema(t, c, "mine")
	p, err := lookup.Fresh[*flowcontrolv1.PriorityLevelConfiguration](t.Context(), c, priorityLevels, "", "exempt")
	if err != nil || *p.Spec.Exempt.NominalConcurrencyShares != 7 {
		t.Errorf("exempt: %+v %v", p, err)
	}
	for gr, objects := range fairness() {
		for _, o := range objects {
			if missing(t, c, gr, o.GetName()) {
				t.Errorf("%s %s is missing", gr.Resource, o.GetName())
			}
		}
	}
	before, err := c.Store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := newBootstrap(t, c, "192.0.2.1").ensureFairness(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, _ := c.Store.Revision(t.Context()); after != before {
		t.Errorf("a second pass made %d writes", after-before)
	}
}

func missing(t *testing.T, c *lookuptest.Caches, gr schema.GroupResource, name string) bool {
	t.Helper()
	r, err := lookup.Resource(c, gr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Get(t.Context(), "", name, "")
	return apierrors.IsNotFound(err)
}
