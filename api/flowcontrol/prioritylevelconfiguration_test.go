package flowcontrol

import (
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func level(name string, spec flowcontrolv1.PriorityLevelConfigurationSpec) *flowcontrolv1.PriorityLevelConfiguration {
	return &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)}, Spec: spec,
	}
}

func limited(r flowcontrolv1.LimitResponse) flowcontrolv1.PriorityLevelConfigurationSpec {
	return flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: "Limited", Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{LimitResponse: r},
	}
}

func TestPriorityLevel(t *testing.T) {
	r := priorityLevels()
	l := level("mine", limited(flowcontrolv1.LimitResponse{Type: "Queue", Queuing: &flowcontrolv1.QueuingConfiguration{}}))
	apitest.Want(t, apitest.Create(r, l))
	apitest.Row(t, r.Row(l, time.Unix(1002, 0)), "mine", "Limited", int64(30), int64(64), int64(8), int64(50), "2s")

	for _, all := range [][]*flowcontrolv1.PriorityLevelConfiguration{
		bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations,
	} {
		for _, m := range all {
			apitest.Want(t, apitest.Create(r, m.DeepCopy()))
		}
	}
	exempt := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	exempt.Spec.Exempt.LendablePercent = ptr.To[int32](50)
	apitest.Want(t, apitest.Create(r, exempt))
	exempt.Spec.Exempt.LendablePercent = ptr.To[int32](101)
	apitest.Want(t, apitest.Create(r, exempt), "spec.exempt.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive")
	catchAll := bootstrap.MandatoryPriorityLevelConfigurationCatchAll.DeepCopy()
	catchAll.Spec.Limited.NominalConcurrencyShares = ptr.To[int32](7)
	apitest.Want(t, apitest.Create(r, catchAll), "spec: Invalid value")

	for _, c := range []struct {
		spec flowcontrolv1.PriorityLevelConfigurationSpec
		want []string
	}{
		{flowcontrolv1.PriorityLevelConfigurationSpec{}, []string{"spec.type: Required value"}},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Odd"}, []string{`spec.type: Unsupported value: "Odd": supported values: "Exempt", "Limited"`}},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Exempt"}, []string{"spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'"}},
		{flowcontrolv1.PriorityLevelConfigurationSpec{Type: "Limited", Exempt: &flowcontrolv1.ExemptPriorityLevelConfiguration{}}, []string{
			"spec.exempt: Forbidden", "spec.limited: Required value"}},
		{limited(flowcontrolv1.LimitResponse{}), []string{"spec.limited.limitResponse.type: Required value"}},
		{limited(flowcontrolv1.LimitResponse{Type: "Queue"}), []string{"spec.limited.limitResponse.queuing: Required value"}},
		{limited(flowcontrolv1.LimitResponse{Type: "Reject", Queuing: &flowcontrolv1.QueuingConfiguration{}}), []string{"spec.limited.limitResponse.queuing: Forbidden"}},
		{limited(flowcontrolv1.LimitResponse{Type: "Queue", Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 2, HandSize: 3, QueueLengthLimit: -1}}), []string{
			"spec.limited.limitResponse.queuing.queueLengthLimit: Invalid value: -1: must be positive",
			"spec.limited.limitResponse.queuing.handSize: Invalid value: 3: should not be greater than queues (2)"}},
		{limited(flowcontrolv1.LimitResponse{Type: "Queue", Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1000, HandSize: 900}}), []string{
			"spec.limited.limitResponse.queuing.handSize: Invalid value: 900: required entropy bits of deckSize 1000 and handSize 900 should not be greater than 60"}},
	} {
		apitest.Want(t, apitest.Create(r, level("x", c.spec)), c.want...)
	}
}
