# Flags, dependencies and the one helper that makes a box (library) of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

set(MESHWRIGHT_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined or thread")
option(MESHWRIGHT_LONG "tests in their long forms" OFF)

# Warnings are errors with the compilers that the project is tested with; a newer one may know
# warnings that nobody has seen here, and must not stop a user's build.
set(tested_compiler OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(tested_compiler ON)
endif()
option(MESHWRIGHT_WERROR "warnings are errors" ${tested_compiler})

add_library(meshwright_flags INTERFACE)
target_compile_options(meshwright_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                       -Wno-missing-field-initializers)
if(MESHWRIGHT_WERROR)
  target_compile_options(meshwright_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns wrongly on `"text" + std::string` when it inlines (GCC bug 105329).
  target_compile_options(meshwright_flags INTERFACE -Wno-restrict)
endif()
target_include_directories(meshwright_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(MESHWRIGHT_SANITIZE)
  target_compile_options(meshwright_flags INTERFACE -fsanitize=${MESHWRIGHT_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(meshwright_flags INTERFACE -fsanitize=${MESHWRIGHT_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The checks that GCC inserts confuse its own flow analysis; other builds keep the warning.
    target_compile_options(meshwright_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(MESHWRIGHT_SANITIZE MATCHES "undefined")
    # Checks of every pointer more than double the compile time (GCC 12: 13.1 s against 5.5 s for one
    # file) and find what AddressSanitizer finds. The arithmetic, shift, bounds and enum checks stay.
    target_compile_options(meshwright_flags INTERFACE
                           -fno-sanitize=null,alignment,object-size,vptr)
  endif()
endif()

find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)          # Boost.Graph is header-only as used here
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(OPENBLAS REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
find_package(MPI COMPONENTS C QUIET)
message(STATUS "Meshwright: MPI ${MPI_C_FOUND} ${MPI_C_VERSION}, BLAS ${OPENBLAS_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(TARGET yaml-cpp::yaml-cpp)
  set(MESHWRIGHT_YAML yaml-cpp::yaml-cpp)
else()
  set(MESHWRIGHT_YAML yaml-cpp)
endif()

# mw_library(name SOURCES a.cc b.cc PUBLIC dep ... PRIVATE dep ...): one box.
function(mw_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  add_library(meshwright::${name} ALIAS ${name})
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE meshwright_flags ${ARG_PRIVATE})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# Groups that the commands build by name, also while nothing belongs to them.
foreach(group IN ITEMS tests_tsan tests_release tests_gpu benchmarks fuzzers)
  add_custom_target(${group})
endforeach()

# mw_add_to(group target): `cmake --build . --target group` builds the group's targets.
function(mw_add_to group target)
  if(NOT TARGET ${group})
    add_custom_target(${group})
  endif()
  add_dependencies(${group} ${target})
endfunction()

# mw_test(name SOURCES x_test.cc DEPS box ... LABELS label ... TIMEOUT s): one GoogleTest program, one
# ctest entry. Label `tsan`: also run under ThreadSanitizer; label `release`: run only at full speed,
# alone. The target tests_<label> builds all of a label.
function(mw_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE meshwright_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE
    MESHWRIGHT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" MESHWRIGHT_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
  add_test(NAME ${name} COMMAND ${target})
  mw_test_properties(${name} "${ARG_TIMEOUT}" ${ARG_LABELS})
  foreach(label IN LISTS ARG_LABELS)
    mw_add_to(tests_${label} ${target})
  endforeach()
endfunction()

# mw_test_properties(name timeout label ...): labels and time limit of any ctest; long forms get more time.
function(mw_test_properties name timeout)
  if(NOT timeout)
    set(timeout 600)
  endif()
  if(MESHWRIGHT_LONG)
    math(EXPR timeout "${timeout} * 12")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT MESHWRIGHT_LONG=1)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "cpu;${ARGN}" TIMEOUT ${timeout})
  if("release" IN_LIST ARGN OR "gpu" IN_LIST ARGN)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# mw_benchmark(name SOURCES x_benchmark.cc DEPS box ...): one Google Benchmark program.
function(mw_benchmark name)
  if(NOT MESHWRIGHT_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE meshwright_flags ${ARG_DEPS} benchmark::benchmark_main)
  target_compile_definitions(${name} PRIVATE MESHWRIGHT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  mw_add_to(benchmarks ${name})
endfunction()
