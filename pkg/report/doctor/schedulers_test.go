package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// Schedulers excludes profiles whose extender serves another resource, and ignores other ConfigMaps.
func TestSchedulersAreThoseThatAskAboutTheResource(t *testing.T) {
	config := func(text string) v1.ConfigMap { return v1.ConfigMap{Data: map[string]string{"config.yaml": text}} }
	configs := []v1.ConfigMap{
		config("profiles: [{schedulerName: ours}, {schedulerName: ours-too}]\nextenders: [{managedResources: [{name: gpumem.dev/gpu-core}, {name: gpumem.dev/gpu-mem, ignoredByScheduler: false}]}]"),
		config("profiles: [{schedulerName: theirs}]\nextenders: [{managedResources: [{name: aliyun.com/gpu-mem}]}]"),
		config("profiles: [{schedulerName: plain}]"),
		config("profiles: [{schedulerName: with-plugin, plugins: {multiPoint: {enabled: [{name: GPUMemory, weight: 1}]}}}, {schedulerName: without, plugins: {multiPoint: {enabled: [{name: Other}]}}}]"),
		config("["),
		{},
	}
	if diff := cmp.Diff([]string{"ours", "ours-too", "with-plugin"}, Schedulers("gpumem.dev/gpu-mem", configs)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
