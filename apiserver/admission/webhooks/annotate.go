package webhooks

import (
	"context"
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	annotations "k8s.io/apiserver/pkg/audit"

	"github.com/skiff-k8s/skiff/apiserver/audit"
)

// Prefixes of audit annotations; a webhook's round and place follow.
const (
	mutationPrefix         = "mutation.webhook.admission.k8s.io/"
	patchPrefix            = "patch.webhook.admission.k8s.io/"
	failedMutationPrefix   = "failed-open." + mutationPrefix
	failedValidationPrefix = "failed-open.validating.webhook.admission.k8s.io/"
)

// place is that of a call: in which round, and of which webhook of all.
type place struct{ round, index int }

func (p place) key(prefix string) string {
	return fmt.Sprintf("%sround_%d_index_%d", prefix, p.round, p.index)
}

func audited(ctx context.Context) bool { return annotations.AuditContextFrom(ctx).Enabled() }

// noteMutation records that a webhook was called, and whether it changed the object.
func (h *hook) noteMutation(ctx context.Context, p place, mutated bool) {
	if !audited(ctx) {
		return
	}
	note(ctx, p.key(mutationPrefix), struct {
		Configuration string `json:"configuration"`
		Webhook       string `json:"webhook"`
		Mutated       bool   `json:"mutated"`
	}{h.configuration, h.name, mutated})
}

// notePatch records a patch where bodies are recorded.
func (h *hook) notePatch(ctx context.Context, p place, patch jsonpatch.Patch) {
	if !audit.WantsPatch(ctx) {
		return
	}
	note(ctx, p.key(patchPrefix), struct {
		Configuration string          `json:"configuration"`
		Webhook       string          `json:"webhook"`
		Patch         jsonpatch.Patch `json:"patch,omitempty"`
		PatchType     string          `json:"patchType,omitempty"`
	}{h.configuration, h.name, patch, string(admissionv1.PatchTypeJSONPatch)})
}

func note(ctx context.Context, key string, value any) {
	if b, err := json.Marshal(value); err == nil { // what was JSON encodes again
		annotations.AddAuditAnnotation(ctx, key, string(b))
	}
}

// noteIgnored records a failure that the webhook's policy ignores.
func (h *hook) noteIgnored(ctx context.Context, prefix string, p place) {
	if audited(ctx) {
		annotations.AddAuditAnnotation(ctx, p.key(prefix), h.name)
	}
}
