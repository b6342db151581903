package admissionregistration

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

const (
	defaultTimeout   = 10
	defaultHTTPSPort = 443
)

// hook is what both kinds of webhook have in common.
type hook struct {
	name           string
	client         *admissionregistrationv1.WebhookClientConfig
	rules          []admissionregistrationv1.RuleWithOperations
	failure        **admissionregistrationv1.FailurePolicyType
	match          **admissionregistrationv1.MatchPolicyType
	namespaces     **metav1.LabelSelector
	objects        **metav1.LabelSelector
	sideEffects    *admissionregistrationv1.SideEffectClass
	timeout        **int32
	reviewVersions []string
	conditions     []admissionregistrationv1.MatchCondition
	// reinvocation is nil for validating webhooks.
	reinvocation **admissionregistrationv1.ReinvocationPolicyType
}

func hooksOf(obj runtime.Object) []hook {
	var hooks []hook
	switch c := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			hooks = append(hooks, hook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector,
				&w.ObjectSelector, w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions, &w.ReinvocationPolicy})
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			hooks = append(hooks, hook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector,
				&w.ObjectSelector, w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions, nil})
		}
	}
	return hooks
}

func mutatingWebhooks() *api.Resource {
	return webhooks("MutatingWebhookConfiguration", "mutatingwebhookconfigurations",
		func() api.Object { return &admissionregistrationv1.MutatingWebhookConfiguration{} },
		func() runtime.Object { return &admissionregistrationv1.MutatingWebhookConfigurationList{} })
}

func validatingWebhooks() *api.Resource {
	return webhooks("ValidatingWebhookConfiguration", "validatingwebhookconfigurations",
		func() api.Object { return &admissionregistrationv1.ValidatingWebhookConfiguration{} },
		func() runtime.Object { return &admissionregistrationv1.ValidatingWebhookConfigurationList{} })
}

func webhooks(kind, plural string, newObject func() api.Object, newList func() runtime.Object) *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: kind, Plural: plural, Categories: []string{"api-extensions"},
		StoragePath: plural,
		New:         newObject, NewList: newList,
		Default: func(obj runtime.Object) {
			for _, h := range hooksOf(obj) {
				h.setDefaults()
			}
		},
		Strategy: api.Strategy{
			Validate: func(_ context.Context, obj runtime.Object) field.ErrorList {
				return append(strict(hooksOf(obj)), validateName(obj.(metav1.Object).GetName())...)
			},
			ValidateUpdate: func(_ context.Context, obj, old runtime.Object) field.ErrorList {
				hooks, before := hooksOf(obj), hooksOf(old)
				return validateHooks(hooks, laxityFor(hooks, before))
			},
			Warnings: func(_ context.Context, obj, old runtime.Object) []string {
				return nameWarnings(obj.(metav1.Object).GetName(), old == nil)
			},
			HasGeneration: true,
			SpecChanged: func(obj, old runtime.Object) bool {
				return !equality.Semantic.DeepEqual(webhookList(obj), webhookList(old))
			},
			RequireRevision: true,
		},
		Columns: countColumns("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration", "", ""),
		Row: func(obj runtime.Object, now time.Time) []any {
			m := obj.(metav1.Object)
			return []any{m.GetName(), int64(len(hooksOf(obj))), api.Age(m.GetCreationTimestamp(), now)}
		},
	}
}

// webhookList is all there is in a configuration but metadata.
func webhookList(obj runtime.Object) any {
	switch c := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return c.Webhooks
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return c.Webhooks
	}
	return nil
}

func (h *hook) setDefaults() {
	setDefault(h.failure, admissionregistrationv1.Fail)
	setDefault(h.match, admissionregistrationv1.Equivalent)
	setDefault(h.namespaces, metav1.LabelSelector{})
	setDefault(h.objects, metav1.LabelSelector{})
	setDefault(h.timeout, defaultTimeout)
	if h.reinvocation != nil {
		setDefault(h.reinvocation, admissionregistrationv1.NeverReinvocationPolicy)
	}
	if h.client.Service != nil {
		setDefault(&h.client.Service.Port, defaultHTTPSPort)
	}
	for i := range h.rules {
		defaultRule(&h.rules[i].Rule)
	}
}
