package audit

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/audit"
)

// RequestObject records the object that a request brings, decoded and with its defaults.
func RequestObject(ctx context.Context, obj runtime.Object) {
	r := recordOf(ctx)
	if r == nil || r.level == audit.LevelNone || r.level == "" {
		return
	}
	if m, err := meta.Accessor(obj); err == nil {
		if r.ref.Namespace == "" {
			r.ref.Namespace = m.GetNamespace()
		}
		if r.ref.Name == "" {
			r.ref.Name = m.GetName()
		}
		r.ref.UID, r.ref.ResourceVersion = m.GetUID(), m.GetResourceVersion()
	}
	if r.level == audit.LevelMetadata {
		return
	}
	r.request = r.encode(obj)
}

// RequestPatch records a patch, which is JSON.
func RequestPatch(ctx context.Context, patch []byte) {
	if r := recordOf(ctx); r != nil && (r.level == audit.LevelRequest || r.level == audit.LevelRequestResponse) {
		r.request = &runtime.Unknown{Raw: patch, ContentType: runtime.ContentTypeJSON}
	}
}

// WantsPatch tells whether RequestPatch has a use for the patch.
func WantsPatch(ctx context.Context) bool {
	r := recordOf(ctx)
	return r != nil && (r.level == audit.LevelRequest || r.level == audit.LevelRequestResponse)
}

// Response records the object that answers a request. A Status is part of every event,
// other objects are only at the highest level.
func Response(ctx context.Context, obj runtime.Object) {
	r := recordOf(ctx)
	if r == nil || r.level == audit.LevelNone || r.level == "" {
		return
	}
	if s, ok := obj.(*metav1.Status); ok {
		r.answer = metav1.Status{Status: s.Status, Message: s.Message, Reason: s.Reason, Details: s.Details, Code: s.Code}
		r.status = &r.answer
	}
	if r.level == audit.LevelRequestResponse {
		r.response = r.encode(obj)
	}
}

// WantsResponse tells whether objects other than a Status are recorded, and then whether
// without their managed fields.
func WantsResponse(ctx context.Context) (wanted, omitManagedFields bool) {
	r := recordOf(ctx)
	if r == nil || r.level != audit.LevelRequestResponse {
		return false, false
	}
	return true, r.omitManagedFields
}

// ResponseJSON records the answer's JSON, for those who asked WantsResponse.
func ResponseJSON(ctx context.Context, b []byte) {
	if r := recordOf(ctx); r != nil && r.level == audit.LevelRequestResponse {
		r.response = &runtime.Unknown{Raw: b, ContentType: runtime.ContentTypeJSON}
	}
}

func (r *record) encode(obj runtime.Object) *runtime.Unknown {
	if r.omitManagedFields {
		obj = WithoutManagedFields(obj)
	}
	b, err := json.Marshal(obj)
	if err != nil {
		r.auditor.log.Error("encode for the audit log", "auditID", r.context.AuditID(), "type", fmt.Sprintf("%T", obj), "err", err)
		return nil
	}
	return &runtime.Unknown{Raw: b, ContentType: runtime.ContentTypeJSON}
}

// WithoutManagedFields is a copy of an object, list or table without the managed fields.
func WithoutManagedFields(obj runtime.Object) runtime.Object {
	_, err := meta.Accessor(obj)
	t, isTable := obj.(*metav1.Table)
	if err != nil && !meta.IsListType(obj) && !isTable {
		return obj
	}
	obj = obj.DeepCopyObject()
	drop := func(o runtime.Object) error {
		if o == nil {
			return nil
		}
		m, err := meta.Accessor(o)
		if err == nil {
			m.SetManagedFields(nil)
		}
		return err
	}
	switch {
	case err == nil:
		err = drop(obj)
	case isTable:
		t = obj.(*metav1.Table)
		for i := range t.Rows {
			if err = drop(t.Rows[i].Object.Object); err != nil {
				break
			}
		}
	default:
		err = meta.EachListItem(obj, drop)
	}
	if err != nil {
		return obj // what has no metadata has no managed fields
	}
	return obj
}
