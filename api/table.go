package api

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Wide is the priority of a column that only `kubectl get -o wide` shows.
const Wide = 1

// Column is a table column of a resource.
func Column(name, kind, description string, priority int32) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description, Priority: priority}
}

// NameColumn is the column that holds metadata.name.
func NameColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
}

// AgeColumn is the column that Age fills from metadata.creationTimestamp.
func AgeColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Age", Type: "string",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}
}

// Age prints how long ago t was, as kubectl shows it.
func Age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// ContainerColumns are the wide columns that ContainerCells fills.
func ContainerColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		Column("Containers", "string", "Names of each container in the template.", Wide),
		Column("Images", "string", "Images referenced by each container in the template.", Wide),
	}
}

// ContainerCells joins the names and the images of a template's containers.
func ContainerCells(containers []corev1.Container) (names, images string) {
	n, i := make([]string, len(containers)), make([]string, len(containers))
	for k := range containers {
		n[k], i[k] = containers[k].Name, containers[k].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
