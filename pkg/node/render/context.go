package render

import (
	"regexp"
	"strconv"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// unknownContextMiB is the size of a CUDA context on an unlisted model. NVIDIA's measurements of memory limits
// reserve the same amount.
const unknownContextMiB = 512

// multiprocessors returns the number of streaming multiprocessors by model, from NVIDIA's data sheets. For
// several models with one name, it contains the largest number. Most of a context is local memory for each
// multiprocessor. Public measurements with CUDA 12 and 13 show 2.9 to 3.2 MiB for each multiprocessor: 107 MiB
// on an RTX 4060 Ti (34), 256 on an RTX 3090 (82), 426 on an RTX 6000 Ada (142), and 555 on an RTX PRO 6000
// (188).
func multiprocessors() speeds.Tables {
	return speeds.Tables{{
		"*P4": 20, "*P40*": 30, "*P100*": 56, "*V100*": 80, "*T4": 40, "*T4G*": 40, "*TITAN RTX*": 72, "*Quadro RTX*": 72, "*RTX 20*": 68,
		"A2": 10, "A10": 72, "A10G*": 80, "A16*": 10, "A30*": 56, "A40*": 84, "A100-*": 108, "A800-*": 108,
		"*RTX A4*": 48, "*RTX A5*": 64, "*RTX A6*": 84, "*RTX 30*": 84,
		"L4": 58, "L20*": 92, "L40": 142, "L40S*": 142, "*RTX 40*": 128, "*Ada Generation": 142,
		"H20*": 78, "H100*": 132, "H800*": 132, "H200*": 132, "GH200*": 132,
		"B200*": 148, "GB200*": 152, "B300*": 160, "GB300*": 160, "*RTX 50*": 170, "*Blackwell*": 188,
	}}
}

var migSlices = regexp.MustCompile(` MIG (\d+)g\.`)

// contextMiB returns the memory of a CUDA context on a device: 3.3 MiB for each of its multiprocessors.
func contextMiB(d gpu.Device) int64 {
	sms := int64(multiprocessors().Speed(d.Model))
	if sms == 0 {
		return unknownContextMiB
	}
	if slices := migSlices.FindStringSubmatch(d.Model); slices != nil {
		if n, err := strconv.ParseInt(slices[1], 10, 64); err == nil {
			sms = min(sms, (sms*n+6)/7)
		}
	}
	return (sms*33 + 9) / 10
}
