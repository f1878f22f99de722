package nearmiss

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// NearMiss describes a glob that matches no device of a node but probably should.
type NearMiss struct {
	Wider string            // wider glob that would match; empty if Index is set
	Index *placement.Device // device whose index the glob contains instead of a UUID
}

// telling is the minimum number of characters of a UUID that identify the intended GPU.
const telling = 4

// wholeUUID is the length of a GPU's UUID.
const wholeUUID = len("GPU-00000000-0000-0000-0000-000000000000")

// FindNearMiss returns the first glob of the request that is the index of a device of the node, or
// would match a device with a star on both sides. In the second case the rest of the request allows the
// device.
func FindNearMiss(v placement.Verdict) (NearMiss, bool) {
	models, ids := nearly(v)
	for _, glob := range split(v.Request.Models, false) {
		if wider := wider(glob); slices.ContainsFunc(models, wider.MatchModel) {
			return NearMiss{Wider: string(wider)}, true
		}
	}
	for _, glob := range split(v.Request.UUIDs, false) {
		if len(glob) >= wholeUUID {
			continue // a complete UUID usually names one GPU of one node
		}
		if at := slices.IndexFunc(v.Node.Devices, func(d placement.Device) bool { return glob == strconv.Itoa(d.Index) }); at >= 0 {
			return NearMiss{Index: &v.Node.Devices[at]}, true
		}
		wider := wider(glob)
		if len(strings.Trim(glob, "*")) >= telling && slices.ContainsFunc(ids, func(id string) bool { return wider.Match(id) }) {
			return NearMiss{Wider: string(wider)}, true
		}
	}
	return NearMiss{}, false
}

// nearly returns the models of the devices that the globs for UUIDs and the globs with "!" allow: one more
// glob for models could make such a device match. It returns UUIDs likewise.
func nearly(v placement.Verdict) (models, ids []string) {
	notModels, notIDs := placement.NewGlobs(split(v.Request.Models, true)...), placement.NewGlobs(split(v.Request.UUIDs, true)...)
	for _, d := range v.Node.Devices {
		id := string(d.UUID)
		if v.Request.UUIDs.Match(id) && notModels.MatchModel(d.Model) {
			models = append(models, d.Model)
		}
		if v.Request.Models.MatchModel(d.Model) && notIDs.Match(id) {
			ids = append(ids, id)
		}
	}
	return slices.Compact(models), ids
}

// split returns the globs that exclude names, or the others.
func split(globs placement.Globs, exclude bool) []string {
	return slices.DeleteFunc(globs.Texts(), func(glob string) bool { return strings.HasPrefix(glob, "!") != exclude })
}

// wider returns a glob that matches all names in which the given glob matches a part.
func wider(glob string) placement.Globs {
	return placement.NewGlobs("*" + strings.Trim(glob, "*") + "*")
}
