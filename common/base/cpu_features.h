// What the CPU and the system under it can do, as the CPU backend's instruction sets need it.
//
// Threads: any. Errors: none.
#pragma once

#include <string>
#include <vector>

namespace flotilla {

bool CpuHasAvx2();    // with FMA and F16C: x86-64-v3
bool CpuHasAvx512();  // F, BW, VL and DQ
bool CpuHasAvx512Vnni();
bool CpuHasAvx512Bf16();
// Tiles of int8, which the system must grant a process: the first call asks it to.
bool CpuHasAmxInt8();

// What --isa takes anywhere …
std::vector<std::string> IsaChoices();
// … and beside "auto" on this machine, best first; empty below x86-64-v3.
std::vector<std::string> SupportedIsaNames();

}  // namespace flotilla
