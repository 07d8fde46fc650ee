#include "emulated/block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>

#include "emulated/cuda.h"

// What `extern __shared__` names in kernels: all of it is the same memory.
extern "C" {
constexpr int kSharedBytes = 227 << 10;
alignas(128) thread_local char emulated_shared_memory[kSharedBytes];
}
namespace fastconv {
#define SHARED_MEMORY(type, name) \
  extern thread_local type name[kSharedBytes / sizeof(type)] __attribute__((alias("emulated_shared_memory")))
SHARED_MEMORY(uint16_t, banded_filter);
SHARED_MEMORY(uint4, diagonal_rows);
#undef SHARED_MEMORY
}  // namespace fastconv

namespace fastconv::emulated {

Index thread_index, block_index, block_size;

Machine& machine() {
  static Machine machine;
  return machine;
}

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr uint32_t kFirstAddress = 1 << 10;  // null is not shared memory's
constexpr int kPoison = 0xff;                // NaN in every type

struct Copy {
  uint32_t to;
  const void* from;
  int bytes;
};

struct Thread {
  ucontext_t begin{};
  jmp_buf place;  // once it has begun
  bool begun = false, ended = false;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  const char* waits_at = nullptr;        // or waited last
  std::deque<std::vector<Copy>> copies;  // groups, the last one not yet committed
};

struct Meeting {
  const char* operation = nullptr;
  std::vector<void*> brought;  // by thread
  int come = 0;
};

struct Block {
  int size = 0, current = 0, smem_bytes = 0;
  std::deque<int> ready;
  std::vector<Meeting> warps;
  Meeting all;
  std::exception_ptr error;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
};

Block block;
std::vector<Thread> threads;  // stacks are used again

Thread& current() { return threads[block.current]; }

[[noreturn]] void fail(const std::string& what) {
  throw std::logic_error("thread " + std::to_string(block.current) + " of block " + std::to_string(block_index.x) +
                         ": " + what);
}

// Returns when `from` is resumed. Not swapcontext(), which asks the system for the signal mask each time.
void resume(int thread, jmp_buf& from) {
  if (_setjmp(from) != 0) return;
  block.current = thread;
  thread_index.x = static_cast<uint32_t>(thread);
  Thread& next = threads[thread];
  if (next.begun) _longjmp(next.place, 1);
  next.begun = true;
  setcontext(&next.begin);
}

int take_ready() {
  const bool turns = machine().order == Order::kTurns;
  const int thread = turns ? block.ready.front() : block.ready.back();
  turns ? block.ready.pop_front() : block.ready.pop_back();
  return thread;
}

void complete(Meeting& meeting, int first, const Act& act) {
  act(meeting.brought);
  meeting.come = 0;
  for (int i = first; i < first + static_cast<int>(meeting.brought.size()); ++i) {
    if (i != block.current) block.ready.push_back(i);
  }
}

void run_thread() {
  Thread& mine = current();
  try {
    (*block.body)();
  } catch (...) {
    block.error = std::current_exception();
  }
  mine.ended = true;
  _longjmp(block.scheduler, 1);
}

void start(int thread) {
  Thread& it = threads[thread];
  it.begun = it.ended = false;
  it.copies.assign(1, {});
  getcontext(&it.begin);
  it.begin.uc_stack = {.ss_sp = it.stack.data(), .ss_flags = 0, .ss_size = it.stack.size()};
  it.begin.uc_link = nullptr;
  makecontext(&it.begin, run_thread, 0);
  block.ready.push_back(thread);
}

void run_block() {
  std::memset(emulated_shared_memory, kPoison, block.smem_bytes);
  block.ready.clear();
  block.all = {nullptr, std::vector<void*>(block.size)};
  block.warps.assign((block.size + 31) / 32, {nullptr, std::vector<void*>(32)});
  block.error = nullptr;
  for (int i = 0; i < block.size; ++i) start(i);
  while (block.error == nullptr && !block.ready.empty()) resume(take_ready(), block.scheduler);
  if (block.error != nullptr) std::rethrow_exception(block.error);
  for (int i = 0; i < block.size; ++i) {
    block.current = i;
    if (!threads[i].ended) fail(std::string("waits at ") + threads[i].waits_at + " for threads that have ended");
  }
}

void make(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(shared(copy.to, copy.bytes), global(copy.from, copy.bytes), copy.bytes);
  } else {
    std::memset(shared(copy.to, copy.bytes), 0, copy.bytes);
  }
}

}  // namespace

void run_grid(const char* kernel, int64_t blocks, int count, int smem_bytes, const std::function<void()>& thread) {
  if (smem_bytes > kSharedBytes) throw std::logic_error("more shared memory than a block may have");
  if (threads.size() < static_cast<size_t>(count)) threads.resize(count);
  block.size = count, block.smem_bytes = smem_bytes, block.body = &thread;
  block_size.x = static_cast<uint32_t>(count);
  std::memset(emulated_shared_memory, kPoison, kSharedBytes);
  try {
    for (int64_t i = 0; i < blocks; ++i) {
      block_index.x = static_cast<uint32_t>(i);
      run_block();
    }
    const auto poisoned = [](char byte) { return byte == static_cast<char>(kPoison); };
    if (!std::all_of(emulated_shared_memory + smem_bytes, emulated_shared_memory + kSharedBytes, poisoned)) {
      fail("someone wrote beyond the shared memory of a block");
    }
  } catch (const std::logic_error& error) {
    throw std::logic_error(std::string(kernel) + ", " + error.what());
  }
}

void meet(Scope scope, const char* operation, void* mine, const Act& act) {
  const int warp = block.current / 32, first = scope == Scope::kWarp ? 32 * warp : 0;
  if (scope == Scope::kBlock && block.warps[warp].come > 0) {
    fail(std::string("at ") + operation + ", lanes of its warp at " + block.warps[warp].operation);
  }
  Meeting& meeting = scope == Scope::kWarp ? block.warps[warp] : block.all;
  if (meeting.come > 0 && std::strcmp(meeting.operation, operation) != 0) {
    fail(std::string("at ") + operation + ", others at " + meeting.operation);
  }
  meeting.operation = current().waits_at = operation;
  meeting.brought[block.current - first] = mine;
  if (++meeting.come == static_cast<int>(meeting.brought.size())) return complete(meeting, first, act);
  if (block.ready.empty())
    fail(std::string("waits at ") + operation + " for threads that have ended or wait elsewhere");
  jmp_buf& place = current().place;
  resume(take_ready(), place);
}

char* shared(uint32_t address, int bytes) {
  const int64_t at = int64_t{address} - kFirstAddress;
  if (at < 0 || at + bytes > block.smem_bytes || at % bytes != 0) {
    fail("no " + std::to_string(bytes) + " aligned bytes of shared memory at " + std::to_string(at) + ", it has " +
         std::to_string(block.smem_bytes));
  }
  return emulated_shared_memory + at;
}

uint32_t shared_address(const void* pointer) {
  const int64_t at = static_cast<const char*>(pointer) - emulated_shared_memory;
  if (at < 0 || at > block.smem_bytes) fail("not a pointer to dynamic shared memory");
  return static_cast<uint32_t>(at) + kFirstAddress;
}

const void* global(const void* pointer, int bytes) {
  const auto* from = static_cast<const char*>(pointer);
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fail("device memory is accessed at an address that is not aligned");
  for (const auto& memory : machine().memory) {
    if (from >= memory.data() && from + bytes <= memory.data() + memory.size()) return pointer;
  }
  fail("device memory is accessed where there is no tensor");
}

void async_copy(uint32_t to, const void* from, int bytes) {
  const Copy copy{to, from, bytes};
  shared(to, bytes);
  if (from != nullptr) global(from, bytes);
  if (machine().order == Order::kHaste) {
    make(copy);
  } else {
    current().copies.back().push_back(copy);
  }
}

void async_copy_commit() { current().copies.emplace_back(); }

void async_copy_wait(int pending) {
  auto& copies = current().copies;
  while (static_cast<int>(copies.size()) - 1 > pending) {
    for (const Copy& copy : copies.front()) make(copy);
    copies.pop_front();
  }
}

}  // namespace fastconv::emulated
