package apiextensions

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddConversions makes the scheme read and write the form that definitions have in etcd:
// upstream still stores v1beta1 there, which is served no more.
func AddConversions(s *runtime.Scheme) error {
	s.AddKnownTypes(apiextensionsv1beta1.SchemeGroupVersion, &apiextensionsv1beta1.CustomResourceDefinition{})
	err := s.AddConversionFunc((*apiextensionsv1.CustomResourceDefinition)(nil), (*apiextensionsv1beta1.CustomResourceDefinition)(nil),
		func(from, to any, scope conversion.Scope) error {
			internal := &apiextensions.CustomResourceDefinition{}
			// The conversions keep references to their input.
			in := from.(*apiextensionsv1.CustomResourceDefinition).DeepCopy()
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(in, internal, scope); err != nil {
				return fmt.Errorf("convert customresourcedefinition %q: %w", in.Name, err)
			}
			return apiextensionsv1beta1.Convert_apiextensions_CustomResourceDefinition_To_v1beta1_CustomResourceDefinition(internal,
				to.(*apiextensionsv1beta1.CustomResourceDefinition), scope)
		})
	if err != nil {
		return err
	}
	return s.AddConversionFunc((*apiextensionsv1beta1.CustomResourceDefinition)(nil), (*apiextensionsv1.CustomResourceDefinition)(nil),
		func(from, to any, scope conversion.Scope) error {
			internal := &apiextensions.CustomResourceDefinition{}
			in := from.(*apiextensionsv1beta1.CustomResourceDefinition).DeepCopy()
			// Defaults differ between the versions: what v1beta1 left out meant other things.
			apiextensionsv1beta1.SetObjectDefaults_CustomResourceDefinition(in)
			if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(in, internal, scope); err != nil {
				return fmt.Errorf("convert customresourcedefinition %q: %w", in.Name, err)
			}
			return apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(internal,
				to.(*apiextensionsv1.CustomResourceDefinition), scope)
		})
}
