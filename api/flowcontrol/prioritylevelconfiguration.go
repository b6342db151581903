package flowcontrol

import (
	"fmt"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

const (
	defaultShares           = 30
	defaultHandSize         = 8
	defaultQueues           = 64
	defaultQueueLengthLimit = 50
	maxQueues               = 10_000_000
)

func priorityLevels() *api.Resource {
	queuing := flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	return &api.Resource{
		Group: flowcontrolv1.GroupName, Version: "v1",
		Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations",
		StoragePath: "prioritylevelconfigurations",
		New:         func() api.Object { return &flowcontrolv1.PriorityLevelConfiguration{} },
		NewList:     func() runtime.Object { return &flowcontrolv1.PriorityLevelConfigurationList{} },
		Default:     api.Defaults(defaultPriorityLevel),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(l *flowcontrolv1.PriorityLevelConfiguration) {
				l.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
			}),
			Validate:      api.Check(validatePriorityLevel),
			PrepareUpdate: api.OnUpdate(func(l, old *flowcontrolv1.PriorityLevelConfiguration) { l.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
				return validatePriorityLevel(l)
			}),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(l, old *flowcontrolv1.PriorityLevelConfiguration) {
					keepMeta(&l.ObjectMeta, &old.ObjectMeta)
					l.Spec = old.Spec
				}),
				ValidateUpdate: api.CheckUpdate(func(l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
					return validatePriorityLevelStatus(l)
				}),
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"], 0),
			api.Column("NominalConcurrencyShares", "string",
				flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"], 0),
			api.Column("Queues", "string", queuing["queues"], 0),
			api.Column("HandSize", "string", queuing["handSize"], 0),
			api.Column("QueueLengthLimit", "string", queuing["queueLengthLimit"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(l *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
			var shares, queues, hand, limit any = "<none>", "<none>", "<none>", "<none>"
			if lim := l.Spec.Limited; lim != nil {
				shares = int64(ptr.Deref(lim.NominalConcurrencyShares, 0))
				if q := lim.LimitResponse.Queuing; q != nil {
					queues, hand, limit = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
				}
			}
			return []any{l.Name, string(l.Spec.Type), shares, queues, hand, limit, api.Age(l.CreationTimestamp, now)}
		}),
	}
}

func defaultPriorityLevel(l *flowcontrolv1.PriorityLevelConfiguration) {
	orElse := func(p **int32, v int32) {
		if *p == nil {
			*p = &v
		}
	}
	if e := l.Spec.Exempt; e != nil {
		orElse(&e.NominalConcurrencyShares, 0)
		orElse(&e.LendablePercent, 0)
	}
	lim := l.Spec.Limited
	if lim == nil {
		return
	}
	orElse(&lim.NominalConcurrencyShares, defaultShares)
	orElse(&lim.LendablePercent, 0)
	if q := lim.LimitResponse.Queuing; q != nil {
		if q.HandSize == 0 {
			q.HandSize = defaultHandSize
		}
		if q.Queues == 0 {
			q.Queues = defaultQueues
		}
		if q.QueueLengthLimit == 0 {
			q.QueueLengthLimit = defaultQueueLengthLimit
		}
	}
}

// zeroSharesAnnotation carried what older versions of the kind could not say.
const zeroSharesAnnotation = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares"

func validatePriorityLevel(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var errs field.ErrorList
	if _, ok := l.Annotations[zeroSharesAnnotation]; ok {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations"),
			fmt.Sprintf("annotation '%s' is forbidden", zeroSharesAnnotation)))
	}
	errs = append(errs, validatePriorityLevelSpec(l.Name, &l.Spec)...)
	errs = append(errs, validateMandatory(l)...)
	return append(errs, validatePriorityLevelStatus(l)...)
}

func validatePriorityLevelStatus(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	types := make([]string, len(l.Status.Conditions))
	for i, c := range l.Status.Conditions {
		types[i] = string(c.Type)
	}
	return validateConditions(types)
}

// validateMandatory wants the levels that every cluster has as they are, but for how much
// "exempt" takes and lends.
func validateMandatory(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	for _, m := range bootstrap.MandatoryPriorityLevelConfigurations {
		if m.Name != l.Name {
			continue
		}
		have, except := l.Spec, ""
		if l.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			have.Exempt, except = m.Spec.Exempt, " except the 'spec.exempt' field"
		}
		if !equality.Semantic.DeepEqual(have, m.Spec) {
			return field.ErrorList{field.Invalid(field.NewPath("spec"), l.Spec,
				fmt.Sprintf("spec of '%s'%s must equal the fixed value", l.Name, except))}
		}
	}
	return nil
}

func validatePriorityLevelSpec(name string, spec *flowcontrolv1.PriorityLevelConfigurationSpec) field.ErrorList {
	var errs field.ErrorList
	p := field.NewPath("spec")
	exempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if (name == flowcontrolv1.PriorityLevelConfigurationNameExempt) != exempt {
		errs = append(errs, field.Invalid(p.Child("type"), spec.Type, "must be 'Exempt' if and only if `name` is 'exempt'"))
	}
	if exempt {
		if e := spec.Exempt; e != nil {
			errs = append(errs, validateShares(e.NominalConcurrencyShares, p.Child("exempt"))...)
			errs = append(errs, validateLendable(e.LendablePercent, p.Child("exempt"))...)
		}
	} else if spec.Exempt != nil {
		errs = append(errs, field.Forbidden(p.Child("exempt"), ""))
	}
	limited := spec.Type == flowcontrolv1.PriorityLevelEnablementLimited
	if l, lp := spec.Limited, p.Child("limited"); l != nil {
		if limited {
			errs = append(errs, validateLimited(l, lp)...)
		} else {
			errs = append(errs, field.Forbidden(lp, ""))
		}
		errs = append(errs, validateResponse(&l.LimitResponse, limited, lp.Child("limitResponse"))...)
	} else if limited {
		errs = append(errs, field.Required(lp, ""))
	}
	if spec.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), ""))
	} else if !exempt && !limited {
		errs = append(errs, field.NotSupported(p.Child("type"), spec.Type, []string{"Exempt", "Limited"}))
	}
	return errs
}

func validateShares(shares *int32, p *field.Path) field.ErrorList {
	if shares != nil && *shares < 0 {
		return field.ErrorList{field.Invalid(p.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer")}
	}
	return nil
}

func validateLendable(percent *int32, p *field.Path) field.ErrorList {
	if percent != nil && (*percent < 0 || *percent > 100) {
		return field.ErrorList{field.Invalid(p.Child("lendablePercent"), *percent, "must be between 0 and 100, inclusive")}
	}
	return nil
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, p *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, p)
	errs = append(errs, validateLendable(l.LendablePercent, p)...)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(p.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	return errs
}

// validateResponse checks the shape also of a response that its level may not have, as
// upstream does, and the values only of one that it may.
func validateResponse(r *flowcontrolv1.LimitResponse, mayBe bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	queues := r.Type == flowcontrolv1.LimitResponseTypeQueue
	switch {
	case queues && r.Queuing == nil:
		errs = append(errs, field.Required(p.Child("queuing"), ""))
	case queues && mayBe:
		errs = append(errs, validateQueuing(r.Queuing, p.Child("queuing"))...)
	case !queues && r.Queuing != nil:
		errs = append(errs, field.Forbidden(p.Child("queuing"), ""))
	}
	if r.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), ""))
	} else if mayBe && !queues && r.Type != flowcontrolv1.LimitResponseTypeReject {
		errs = append(errs, field.NotSupported(p.Child("type"), r.Type, []string{"Queue", "Reject"}))
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	bad := func(name string, value int32, detail string) {
		errs = append(errs, field.Invalid(p.Child(name), value, detail))
	}
	if q.QueueLengthLimit <= 0 {
		bad("queueLengthLimit", q.QueueLengthLimit, "must be positive")
	}
	if q.Queues <= 0 {
		bad("queues", q.Queues, "must be positive")
	} else if q.Queues > maxQueues {
		bad("queues", q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues))
	}
	switch {
	case q.HandSize <= 0:
		bad("handSize", q.HandSize, "must be positive")
	case q.HandSize > q.Queues:
		bad("handSize", q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues))
	case shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)) > shufflesharding.MaxHashBits:
		bad("handSize", q.HandSize, fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d",
			q.Queues, q.HandSize, shufflesharding.MaxHashBits))
	}
	return errs
}
