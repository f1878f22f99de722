package coexist

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
)

// Selector selects the GPUs of a node that gpumem offers. The zero value selects all.
type Selector struct {
	text               string
	included, excluded []string
}

// ParseSelector parses a comma-separated list of globs of UUIDs and indexes: "0,1", "GPU-4cc89e34*", "!3". A
// leading ! excludes. A list with only exclusions selects all other GPUs.
func ParseSelector(s string) (Selector, error) {
	out := Selector{text: s}
	for glob := range strings.SplitSeq(s, ",") {
		if glob = strings.TrimSpace(glob); glob == "" {
			continue
		}
		bare, excludes := strings.CutPrefix(glob, "!")
		if _, err := path.Match(bare, ""); err != nil || bare == "" {
			return Selector{}, fmt.Errorf("%q: want UUIDs or indexes of GPUs, with * and ? as wildcards and ! before those to leave out, and commas between them", s)
		}
		if excludes {
			out.excluded = append(out.excluded, bare)
		} else {
			out.included = append(out.included, bare)
		}
	}
	return out, nil
}

// Selects reports whether gpumem offers a GPU. The UUID of a GPU also selects its MIG instances.
func (s Selector) Selects(d gpu.Device) bool {
	matches := func(glob string) bool {
		byUUID, _ := path.Match(glob, string(d.UUID)) // ParseSelector has validated the glob
		byIndex, _ := path.Match(glob, strconv.Itoa(d.Index))
		byParent, _ := path.Match(glob, string(d.Parent))
		return byUUID || byIndex || byParent && d.Parent != ""
	}
	return !slices.ContainsFunc(s.excluded, matches) && (len(s.included) == 0 || slices.ContainsFunc(s.included, matches))
}

// Selected returns the GPUs that a selector selects. It looks up indexes in the device plugin's record.
func (s Selector) Selected(record checkpoint.Store, devices []gpu.Device) map[gpu.UUID]bool {
	selected, _ := s.selectGPUs(devices, checkpoint.Peek[recorded](record, recordVersion).indexesFor(s))
	return selected
}

// selectGPUs returns the selected GPUs, and the index of each GPU for the selector. A GPU in recordedIndexes
// keeps its recorded index. A new GPU gets its current index, unless a present GPU is recorded with that index:
// then the new GPU gets -1. If an absent GPU is recorded with that index, the new GPU replaces the absent one.
func (s Selector) selectGPUs(devices []gpu.Device, recordedIndexes map[gpu.UUID]int) (selected map[gpu.UUID]bool, indexes map[gpu.UUID]int) {
	selected, indexes = make(map[gpu.UUID]bool), make(map[gpu.UUID]int)
	maps.Copy(indexes, recordedIndexes)
	present, owner := make(map[gpu.UUID]bool), make(map[int]gpu.UUID)
	for _, d := range devices {
		present[d.UUID] = true
	}
	for id, index := range recordedIndexes {
		owner[index] = id
	}
	for _, d := range devices {
		if _, known := recordedIndexes[d.UUID]; !known {
			other, taken := owner[d.Index]
			if indexes[d.UUID] = d.Index; taken && present[other] {
				indexes[d.UUID] = -1
			} else if taken {
				delete(indexes, other)
			}
		}
		d.Index = indexes[d.UUID]
		selected[d.UUID] = s.Selects(d)
	}
	return selected, indexes
}

const recordVersion = 1

// recorded is the record of the first index of each GPU of a node, including GPUs that --devices omits.
type recorded struct {
	Version int              `json:"v"`
	Devices string           `json:"devices"` // value of --devices that the indexes belong to
	Indexes map[gpu.UUID]int `json:"indexes"` // -1 if another GPU had the index first
}

// indexesFor returns the indexes that were recorded for a selector, or nil if the record belongs to another
// selector.
func (r recorded) indexesFor(s Selector) map[gpu.UUID]int {
	if r.Devices != s.text {
		return nil
	}
	return r.Indexes
}

// choice applies a selector with the same indexes in this process and in all later ones.
type choice struct {
	Selector
	record  checkpoint.Store // nil if the choice applies to this process only
	indexes map[gpu.UUID]int
	failed  bool // the last write of the record failed
}

// maxReads is the number of failed reads after which the record counts as lost. Before that, gpumem offers no
// GPU.
const maxReads = 30

// load waits until it has read the record of the last process, or the context is done.
func (c *choice) load(ctx context.Context, log *zap.Logger) {
	if c.record == nil || c.text == "" {
		return
	}
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) { // only the context ends it early
		state, _, err := checkpoint.Load[recorded](c.record, recordVersion, log)
		if err != nil {
			log.Warn("no GPU is offered before the record of --devices is read", zap.Error(err))
			return false, nil
		}
		c.indexes = state.indexesFor(c.Selector)
		return true, nil
	})
}

// apply returns the selected GPUs, and records the indexes of new ones.
func (c *choice) apply(devices []gpu.Device, log *zap.Logger) map[gpu.UUID]bool {
	selected, indexes := c.selectGPUs(devices, c.indexes)
	changed := !maps.Equal(indexes, c.indexes)
	c.indexes = indexes
	if c.record == nil || c.text == "" || !changed && !c.failed {
		return selected
	}
	data, err := json.Marshal(recorded{recordVersion, c.text, indexes})
	if err == nil {
		err = c.record.Write(data)
	}
	if err != nil && !c.failed {
		log.Warn("the next process may select other GPUs by the indexes in --devices: the indexes are not recorded", zap.Error(err))
	}
	c.failed = err != nil
	return selected
}
