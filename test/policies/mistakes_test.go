package policies

import (
	"cmp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An amount with a suffix of bytes is refused, and one that a node could offer never is.
func TestAmountsInBytes(t *testing.T) {
	const tooMuch = "gpumem.dev/gpu-mem is more than any GPU has: write a number without a suffix, the unit is 1 GiB"
	for amount, wants := range map[string]struct{ gib, quarter string }{ // by the unit
		"0":       {},
		"1":       {},
		"3k":      {},
		"288k":    {}, // MiB of the largest GPU
		"1M":      {}, // more than the kubelet takes of a node
		"1000001": {"container main: gpumem.dev/gpu-mem is 1000001: write 1, the unit is 1 GiB", "write 1, the unit is 256 MiB"},
		"3Gi":     {"container main: gpumem.dev/gpu-mem is 3Gi: write 3, the unit is 1 GiB", "write 12, the unit is 256 MiB"},
		"2.5Gi":   {"container main: gpumem.dev/gpu-mem is 2560Mi: write 3, the unit is 1 GiB", "write 10, the unit is 256 MiB"},
		"3G":      {"container main: gpumem.dev/gpu-mem is 3G: write 3, the unit is 1 GiB", "write 12, the unit is 256 MiB"},
		"512Mi":   {"container main: gpumem.dev/gpu-mem is 512Mi: write 1, the unit is 1 GiB", "write 2, the unit is 256 MiB"},
		// Rounded up, it is beyond 64 bits.
		"9223372036854775807": {tooMuch, "write a number without a suffix, the unit is 256 MiB"},
	} {
		for values, want := range map[string]string{"default": wants.gib, "units256": wants.quarter} {
			t.Run(amount+" "+values, func(t *testing.T) {
				p := policy(t, values, "gpumem-annotations")
				asking := v1.Container{Name: "main", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"gpumem.dev/gpu-mem": resource.MustParse(amount)}}}
				pod := v1.PodSpec{Containers: []v1.Container{{Name: "other"}, asking}}
				check(t, p, request{resource: "pods", is: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: pod}}, want)
				init := v1.PodSpec{InitContainers: []v1.Container{asking}, Containers: []v1.Container{{Name: "other"}}}
				check(t, p, request{resource: "deployments", is: &appsv1.Deployment{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "d"},
					Spec:       appsv1.DeploymentSpec{Template: v1.PodTemplateSpec{Spec: init}},
				}}, want)
			})
		}
	}
}

func TestQuotasThatLimitNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		key, want string
		values    string
		amount    string // empty: 10
	}{
		"a request":                 {"requests.gpumem.dev/gpu-mem", "", "default", ""},
		"the resource":              {"gpumem.dev/gpu-mem", "gpumem.dev/gpu-mem limits nothing in a ResourceQuota: write requests.gpumem.dev/gpu-mem", "default", ""},
		"a limit":                   {"limits.gpumem.dev/gpu-core", "limits.gpumem.dev/gpu-core limits nothing in a ResourceQuota: write requests.gpumem.dev/gpu-core", "default", ""},
		"a name that is none":       {"requests.gpumem.dev/gpu-memory", "requests.gpumem.dev/gpu-memory limits nothing in a ResourceQuota: gpumem has no such resource, write requests.gpumem.dev/gpu-mem", "default", ""},
		"an amount in bytes":        {"requests.gpumem.dev/gpu-mem", "requests.gpumem.dev/gpu-mem is 10Gi: write 10, the unit is 1 GiB", "default", "10Gi"},
		"another resource":          {"nvidia.com/gpu", "", "default", ""},
		"a domain that looks alike": {"gpumemxdev/gpu-mem", "", "default", ""},
		"another domain":            {"aliyun.com/gpu-mem", "aliyun.com/gpu-mem limits nothing in a ResourceQuota: write requests.aliyun.com/gpu-mem", "aliyun", ""},
		"not of this installation":  {"aliyun.com/gpu-mem", "", "default", ""},
	} {
		t.Run(name, func(t *testing.T) {
			quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "q"}, Spec: v1.ResourceQuotaSpec{Hard: v1.ResourceList{
				v1.ResourceName(tc.key): resource.MustParse(cmp.Or(tc.amount, "10")), "cpu": resource.MustParse("1"),
			}}}
			p := policy(t, tc.values, "gpumem-quotas")
			check(t, p, request{resource: "resourcequotas", is: quota}, tc.want)
			check(t, p, request{resource: "resourcequotas", was: &v1.ResourceQuota{}, is: quota}, tc.want)
		})
	}
	none := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "q"}}
	check(t, policy(t, "default", "gpumem-quotas"), request{resource: "resourcequotas", is: none}, "")
}
