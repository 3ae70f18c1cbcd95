# cmake -DCOMPILER=c++ -DROOT=dir -DSOURCE=x.cc -P check_misuse.cmake
# SOURCE compiles as it is (so that a broken include is not taken for a refusal) and is refused, by the
# compiler's own error, when MW_MISUSE is defined.
set(command ${COMPILER} -std=c++20 -fsyntax-only -Werror=unused-result -I${ROOT})
execute_process(COMMAND ${command} ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} must compile without MW_MISUSE:\n${errors}")
endif()
execute_process(COMMAND ${command} -DMW_MISUSE ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE errors)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles with MW_MISUSE: the misuse it shows is no longer refused")
endif()
if(NOT errors MATCHES "error: ")
  message(FATAL_ERROR "${SOURCE}: the compiler failed without an error of its own:\n${errors}")
endif()
