package policies

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	annotations "k8s.io/apiserver/pkg/audit"
)

// trail is what policies say about a write for the audit log.
type trail struct {
	failures []failure
	// notes are the values of a policy's own annotations by "policy/key", one for each
	// binding that gives another.
	notes map[string][]string
}

// failure is the form of a violation in the audit log.
type failure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

// Limits are upstream's.
const (
	failureKey  = "validation.policy.admission.k8s.io/validation_failure"
	maxFailures = 50
	maxNote     = 10 << 10
)

func (t *trail) note(policy, key, value string) {
	value = value[:min(len(value), maxNote)]
	k := policy + "/" + key
	if slices.Contains(t.notes[k], value) {
		return
	}
	if t.notes == nil {
		t.notes = map[string][]string{}
	}
	t.notes[k] = append(t.notes[k], value)
}

// publish hands the trail to the audit log.
func (t *trail) publish(ctx context.Context) {
	for k, values := range t.notes {
		annotations.AddAuditAnnotation(ctx, k, strings.Join(values, ", "))
	}
	if len(t.failures) == 0 {
		return
	}
	b, err := json.Marshal(t.failures[:min(len(t.failures), maxFailures)])
	if err != nil {
		return // strings and integers always encode
	}
	annotations.AddAuditAnnotation(ctx, failureKey, string(b))
}
