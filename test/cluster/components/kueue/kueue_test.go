package kueue

import (
	"bytes"
	"os"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/resources"
	"sigs.k8s.io/kueue/pkg/webhooks"
	"sigs.k8s.io/kueue/pkg/workload"
	"sigs.k8s.io/yaml"
)

const gpuMem = v1.ResourceName("gpumem.dev/gpu-mem")

// sample decodes the objects of the sample, by kind. A field that a type does
// not have is an error.
func sample(t *testing.T, into map[string]any) {
	t.Helper()
	text, err := os.ReadFile("../../../../config/samples/kueue.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatal(err)
		}
		object, ok := into[head.Kind]
		if !ok {
			t.Fatalf("a %q in the sample, which nobody checks", head.Kind)
		}
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			t.Fatalf("%s: %v", head.Kind, err)
		}
	}
}

func TestTheSampleIsValid(t *testing.T) {
	var (
		flavor  kueue.ResourceFlavor
		cluster kueue.ClusterQueue
		local   kueue.LocalQueue
		job     batchv1.Job
	)
	sample(t, map[string]any{"ResourceFlavor": &flavor, "ClusterQueue": &cluster, "LocalQueue": &local, "Job": &job})
	if errs := webhooks.ValidateResourceFlavor(&flavor); len(errs) > 0 {
		t.Errorf("ResourceFlavor: %v", errs.ToAggregate())
	}
	if errs := webhooks.ValidateClusterQueue(&cluster); len(errs) > 0 {
		t.Errorf("ClusterQueue: %v", errs.ToAggregate())
	}
	if string(local.Spec.ClusterQueue) != cluster.Name || job.Labels["kueue.x-k8s.io/queue-name"] != local.Name || job.Namespace != local.Namespace {
		t.Errorf("the job is in queue %s/%s, which is %s/%s of %s", job.Namespace, job.Labels["kueue.x-k8s.io/queue-name"], local.Namespace, local.Name, local.Spec.ClusterQueue)
	}

	// What Kueue counts for the job is within the quota, and all of it is covered.
	pod := job.Spec.Template.Spec
	workload.UseLimitsAsMissingRequestsInPod(&pod)
	group := cluster.Spec.ResourceGroups[0]
	quota := make(map[v1.ResourceName]int64)
	for _, r := range group.Flavors[0].Resources {
		quota[r.Name] = resources.ResourceValue(r.Name, r.NominalQuota)
	}
	requests := resources.NewRequestsFromPodSpec(&pod)
	requests.ForEach(func(name v1.ResourceName, amount int64) {
		if all := amount * int64(*job.Spec.Parallelism); all > quota[name] {
			t.Errorf("the job asks for %d of %s, and the quota is %d", all, name, quota[name])
		}
	})
	if got := requests.GetValue(gpuMem); got != 8 {
		t.Errorf("Kueue counts %d of GPU memory for a pod, want 8", got)
	}
	if group.Flavors[0].Name != kueue.ResourceFlavorReference(flavor.Name) {
		t.Errorf("the queue is of flavor %s, want %s", group.Flavors[0].Name, flavor.Name)
	}
}
