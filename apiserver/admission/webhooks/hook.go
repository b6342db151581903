// Package webhooks asks the admission webhooks that users configured about writes.
//
// Owns: whom to ask, in which order, and what follows from the answers. Must not: know
// how webhooks are reached (apiserver/webhook), or what writes are about.
package webhooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// Config configures Mutating and Validating.
type Config struct {
	Caches lookup.Caches
	Caller *webhook.Caller
	// Authorizer answers match conditions that ask about the user.
	Authorizer authorizer.UnconditionalAuthorizer
	Log        *slog.Logger
}

func (c *Config) check() error {
	if c.Caches == nil || c.Caller == nil || c.Authorizer == nil {
		return errors.New("webhooks: Caches, Caller and Authorizer must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// hook is one webhook of a configuration, read once.
type hook struct {
	// key is stable over changes of other webhooks of the configuration.
	key, name string
	// configuration is the name of what the webhook stands in.
	configuration string
	mutating      bool
	criteria      match.Criteria
	conditions    *match.Conditions
	target        webhook.Target
	versions      []string
	sideEffects   *admissionregistrationv1.SideEffectClass
	timeout       time.Duration
	ignore        bool // failures
	reinvoke      bool
}

// reader makes hooks of configurations. Its compiler is built at the first webhook that has
// match conditions: it costs some milliseconds.
type reader struct {
	compiler func() plugincel.ConditionCompiler
}

func newReader() *reader {
	return &reader{sync.OnceValue(func() plugincel.ConditionCompiler {
		return plugincel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	})}
}

func (r *reader) compile(conditions []admissionregistrationv1.MatchCondition) *match.Conditions {
	if len(conditions) == 0 {
		return nil
	}
	return match.Compile(r.compiler(), conditions, plugincel.OptionalVariableDeclarations{HasAuthorizer: true})
}

func (r *reader) mutating(c *admissionregistrationv1.MutatingWebhookConfiguration) []*hook {
	var out []*hook
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		out = append(out, &hook{
			key: fmt.Sprintf("%s/%s/%d", c.Name, w.Name, i), name: w.Name, configuration: c.Name, mutating: true,
			criteria:   match.ForWebhook(w.NamespaceSelector, w.ObjectSelector, w.Rules, w.MatchPolicy),
			conditions: r.compile(w.MatchConditions), target: target(&w.ClientConfig), versions: w.AdmissionReviewVersions,
			sideEffects: w.SideEffects, timeout: seconds(w.TimeoutSeconds),
			ignore:   w.FailurePolicy != nil && *w.FailurePolicy == admissionregistrationv1.Ignore,
			reinvoke: w.ReinvocationPolicy != nil && *w.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy,
		})
	}
	return out
}

func (r *reader) validating(c *admissionregistrationv1.ValidatingWebhookConfiguration) []*hook {
	var out []*hook
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		out = append(out, &hook{
			key: fmt.Sprintf("%s/%s/%d", c.Name, w.Name, i), name: w.Name, configuration: c.Name,
			criteria:   match.ForWebhook(w.NamespaceSelector, w.ObjectSelector, w.Rules, w.MatchPolicy),
			conditions: r.compile(w.MatchConditions), target: target(&w.ClientConfig), versions: w.AdmissionReviewVersions,
			sideEffects: w.SideEffects, timeout: seconds(w.TimeoutSeconds),
			ignore: w.FailurePolicy != nil && *w.FailurePolicy == admissionregistrationv1.Ignore,
		})
	}
	return out
}

func seconds(s *int32) time.Duration {
	if s == nil {
		return defaultTimeout
	}
	return time.Duration(*s) * time.Second
}

func target(c *admissionregistrationv1.WebhookClientConfig) webhook.Target {
	t := webhook.Target{CABundle: c.CABundle}
	if c.URL != nil {
		t.URL = *c.URL
	}
	if s := c.Service; s != nil {
		t.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name}
		if s.Path != nil {
			t.Service.Path = *s.Path
		}
		if s.Port != nil {
			t.Service.Port = *s.Port
		}
	}
	return t
}

// concerns says whether and as what a webhook is asked about a write.
func (h *hook) concerns(ctx context.Context, c *Config, w *match.Write) (match.Hit, bool, error) {
	hit, ok, err := h.criteria.Match(ctx, w)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return hit, false, err
		}
		return hit, false, apierrors.NewInternalError(err)
	}
	if !ok || h.conditions == nil {
		return hit, ok, nil
	}
	view, err := w.View(hit.Kind)
	if err != nil {
		return hit, false, apierrors.NewInternalError(err)
	}
	ok, err = h.conditions.Match(ctx, view, nil, c.Authorizer)
	switch {
	case err == nil:
		return hit, ok, nil
	case h.ignore:
		c.Log.Warn("match conditions of a webhook failed, not called", "webhook", h.name, "err", err)
		return hit, false, nil
	}
	return hit, false, apierrors.NewForbidden(w.Resource.GroupResource(), w.Name, err)
}

var (
	mutatingConfigurations   = schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: "mutatingwebhookconfigurations"}
	validatingConfigurations = schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: "validatingwebhookconfigurations"}
)
